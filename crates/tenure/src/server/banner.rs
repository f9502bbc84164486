//! What a person, or a journal, sees of `tenure server`.

use std::net::SocketAddr;

use crate::replica::FolderReport;
use crate::settings::Settings;

pub(super) struct Facts<'a> {
    pub url: &'a str,
    pub listen: SocketAddr,
    pub shards: u16,
    pub settings: &'a Settings,
    pub found: Option<FolderReport>,
}

pub(super) fn print(facts: &Facts<'_>) {
    let Facts { url, listen, shards, settings, found } = facts;
    let shown = |key: &str| {
        let setting = settings.shown.iter().find(|shown| shown.key == key);
        setting.and_then(|shown| shown.value.clone()).unwrap_or_default()
    };
    println!("Tenure {} serves.", env!("CARGO_PKG_VERSION"));
    println!("  address  {url} (listening on {listen})");
    println!("  database {} ({shards} shards, profile {})", shown("database_url"), settings.profile.name());
    println!("  leases   {} ({})", shown("leases"), shown("lease_duration"));
    if let Some(found) = found {
        println!("  dags     {found}");
    }
}

pub(super) fn farewell() {
    println!("Tenure has stopped.");
}
