"""Draft heads in torch: trained here, run here where the target runs on torch, and compared with by other executors."""
