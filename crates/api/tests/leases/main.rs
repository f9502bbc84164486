//! Goal: any component can elect its leader over HTTP, and learns the truth in plain words when it loses.
//! Method: the lease routes over leases in memory, whoever installs the fence; a clock that stands still; real
//! sockets for what is watched.

mod asking;
mod electing;
mod harness;
mod looking;
mod watching;
