//! Where things can go wrong, and which faults can meet where: what a campaign should have reached.

use crate::trace::Met;

/// What replicas ask of the store. The last is only asked where leases are apart.
pub const STORE_VERBS: [&str; FENCED_VERBS + 1] = [
    "acquire",
    "advance_drain",
    "attach",
    "attention",
    "clear",
    "commit_pass",
    "create_run",
    "dag_versions",
    "drain_node",
    "find_lease",
    "limits",
    "list_leases",
    "list_nodes",
    "load_dag",
    "load_runs",
    "occupancy",
    "open_signals",
    "orphans",
    "ping",
    "present",
    "record_presence",
    "record_reports",
    "register_node",
    "release",
    "renew",
    "set_run_state",
    "shard_snapshot",
    "trade_shares",
    "undrain_node",
    "waiting",
    "install_fence",
];
/// So many where an acquire installs the fence.
pub const FENCED_VERBS: usize = 30;

/// What goes to wherever the leases are.
pub fn is_about_leases(verb: &str) -> bool {
    matches!(
        verb,
        "acquire" | "attach" | "find_lease" | "lease_history" | "list_leases" | "release" | "renew"
    )
}

/// What becomes of such a call.
const STORE_FAULTS: [&str; 10] = [
    "answer lost",
    "answers cut",
    "crash after",
    "crash before",
    "cut from store",
    "frozen in the middle",
    "paused or dead",
    "request lost",
    "slow store",
    "store down",
];

/// What a replica does with agents.
pub const DISPATCH_STEPS: [&str; 2] = ["assign", "stop"];
/// What an agent does with an attempt, from its order to its end: it may die before each.
pub const AGENT_STEPS: [&str; 5] = ["claim", "start", "spool", "end", "forget"];

/// Every pair of a fault and a boundary that can meet.
pub fn possible() -> impl Iterator<Item = Met> {
    let pairs = |faults: &'static [&'static str], steps: &'static [&'static str]| {
        faults.iter().flat_map(move |fault| steps.iter().map(move |step| (*fault, *step)))
    };
    let shaken = &["message doubled", "message late"];
    pairs(&STORE_FAULTS, &STORE_VERBS)
        .chain(pairs(&["crash before", "crash after"], &DISPATCH_STEPS))
        .chain(pairs(&["crash before"], &AGENT_STEPS))
        .chain(pairs(shaken, &["assign", "inventory", "stop", "claim", "end", "ack"]))
        // A stop is never lost while its stream stands.
        .chain(pairs(&["message lost"], &["assign", "inventory", "claim", "end", "ack"]))
        .chain(pairs(&["agent paused or dead"], &["assign", "inventory", "stop"]))
        .chain(pairs(&["cut to agent"], &["assign", "inventory", "stop", "ack"]))
        .chain(pairs(&["cut to replica"], &["claim", "end"]))
}
