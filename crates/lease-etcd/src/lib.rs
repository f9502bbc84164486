//! Leases in etcd (3.4 and later).
//!
//! A lease is a key, attached to an etcd lease of the same length, rounded up to seconds. etcd's leader counts it
//! down on a clock that cannot be set back, and deletes the key when it has run out or was revoked; everybody
//! else learns of it by a watch. `.terms` and `.history` beside it remember what was (see `keys.rs`), and
//! `.fences` mints epochs where there is no state database to do it.
//!
//! One etcd lease for each scope, and not one for all scopes of a process: leases that are not renewed have to run
//! out, even when the same process (an API server, say) renews others. A thousand keep-alives are a few streams.
//!
//! A renewal is a read of the keys and then a keep-alive of the etcd leases they are attached to: a key that
//! is there with our term, attached to a lease that lives *after* that, is ours. The record is not written
//! again each time. Auto-compaction is off in a default etcd, and a thousand scopes renewed every five seconds would
//! fill its two gigabytes within a day. So that renewals can be seen all the same, a process's renewals move one
//! small key of its session (`.renewals`), a few megabytes a day: `renewed_at` and `resource_version`
//! come from it. They may show a renewal of *another* scope of the same session, never miss one.
//!
//! The etcd lease of a term has an id that is derived from it: whoever asks again after a lost answer finds the same
//! one. Those that lose a race or a takeover are revoked.
//!
//! What this crate promises: the contract of [`LeaseStore`](tenure_lease::LeaseStore), with
//! `fenced_transactions` off; an answer or an error within a few timeouts, whatever the network does. What it does not
//! promise: prompt expiry. etcd starts all leases anew when its own leader changes, and a server whose election
//! timeout is longer than the default raises short leases to 1.5 times that; a takeover after a crash may come
//! late. Nor crash hints, nor TLS. An epoch of [`FenceStore`](tenure_lease::FenceStore) here grows even when all of
//! etcd's data is lost, as long as no clock of a candidate is set back by more than the time since the last
//! takeover; where a state database mints the epochs, they do not depend on clocks.

mod acquiring;
mod fencing;
mod keys;
mod options;
mod protocol;
mod reading;
mod records;
mod releasing;
mod renewing;
mod store;
mod watching;
mod wire;

pub use options::{Credentials, EtcdOptions, OptionsError};
pub use store::EtcdLeases;
