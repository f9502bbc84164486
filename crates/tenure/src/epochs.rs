//! How epochs are minted on Postgres, as a choice on the command line.

use clap::ValueEnum;
use tenure_store_postgres::EpochMint;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Epochs {
    /// One more than the last
    #[default]
    Count,
    /// At least the milliseconds since 1970, for a Postgres whose failover may lose the newest commits
    Clock,
}

impl Epochs {
    pub fn mint(self) -> EpochMint {
        match self {
            Self::Count => EpochMint::Counting,
            Self::Clock => EpochMint::Clock,
        }
    }
}
