//! The store on Postgres: one database for many replicas.
//!
//! Promises: every verb is one transaction; a privileged one locks its fence row in share mode and compares
//! epoch and term before it may commit; what was acknowledged survives (`synchronous_commit = on`); an
//! answer that was lost is [`StoreError::Unknown`](tenure_store::StoreError::Unknown), never a guess; a
//! cancelled call leaves no connection in a strange state behind.
//! It does not promise TLS yet, and needs Postgres 14 or newer.

mod batch;
mod chores;
mod connect;
mod deed;
mod describe;
mod errors;
mod fence;
mod identities;
mod intent;
mod leases;
mod listen;
mod migrate;
mod pass;
mod presence;
mod reads;
mod reshard;
mod rows;
mod session;
mod shares;
mod versions;
mod views;
mod wakes;

use std::fmt;

pub use connect::{ConnectError, LONGEST_STATEMENT, PostgresOptions};
pub use describe::{Description, describe};
pub use leases::{EpochMint, PostgresLeaseOptions, PostgresLeases};
pub use reshard::{ReshardError, Resharded, reshard};

/// A state database on Postgres. It finds its way back by itself after the server was away.
pub struct PostgresStore {
    /// For everything but leases.
    pool: deadpool_postgres::Pool,
    /// With connections of its own: a starved pool must not cost leadership.
    leases: PostgresLeases,
    shards: u16,
    specs: tenure_store::SpecCache,
    wakes: wakes::Wakes,
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStore")
            .field("shards", &self.shards)
            .field("pool", &self.pool.status())
            .field("leases", &self.leases)
            .finish()
    }
}
