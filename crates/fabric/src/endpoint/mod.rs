//! Endpoints: connections as applications see them. They drive the session's state machine over a provider's QPs and an exchange's channel, post in
//! batches, and give completions by polling, events, callbacks or futures. No policy of the control plane stands here.
