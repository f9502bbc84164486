//! Goal: whatever a server or the network does to a request, its caller learns whether it may have been carried out,
//! and hints go on. Method: servers that misbehave in one way each, beside real ones, over real sockets.

mod electing;
mod fate;
mod harness;
mod hints;
