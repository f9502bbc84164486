//! What a person sees in the terminal of `tenure up`.

use std::path::Path;

use crate::replica::FolderReport;

pub(super) struct Facts<'a> {
    pub url: &'a str,
    pub data: &'a Path,
    pub database: &'a str,
    pub profile: &'a str,
    pub found: &'a FolderReport,
}

pub(super) fn print(facts: &Facts<'_>) {
    let program = std::env::args().next().unwrap_or_else(|| "tenure".into());
    println!("Tenure {} is up.", env!("CARGO_PKG_VERSION"));
    println!("  address  {}", facts.url);
    println!("  data     {} ({}, profile {})", facts.data.display(), facts.database, facts.profile);
    println!("  dags     {}", facts.found);
    match facts.found.example() {
        Some(dag) => println!("\nTrigger a run:  {program} run trigger {dag} --wait"),
        None => println!("\nRegister a dag: {program} dag push FILE"),
    }
    println!("See the dags:   {program} dag list\nStop with Ctrl-C; starting again goes on where it was.");
}

pub(super) fn farewell(left_running: usize) {
    match left_running {
        0 => println!("Tenure has stopped."),
        1 => println!("Tenure has stopped. 1 task keeps running; starting again picks it up."),
        n => println!("Tenure has stopped. {n} tasks keep running; starting again picks them up."),
    }
}
