"""`paceline bench`: ways of decoding measured side by side, in pairs, with intervals.

Own configurations and OpenAI URLs are *arms*. Every prompt is answered by all arms before the next one begins, in
orders that balance who comes before whom; plain decoding always runs twice, and what lies between the two is the noise.
"""
