//! Tasks of a cluster that leave a line for each start and wait for a word.

use std::time::Duration;

use super::cluster::{Cluster, Replica};
use super::wait_until;

pub fn push(cluster: &Cluster, replica: &Replica<'_>, dag: &str, text: &str) {
    let file = cluster.path(&format!("{dag}.yaml"));
    std::fs::write(&file, text).unwrap();
    cluster.ok(replica, &["dag", "push", file.to_str().unwrap(), "--unpaused"]);
}

/// `task try pid` of every start, in the order in which they happened.
pub fn starts(cluster: &Cluster) -> Vec<(String, u32, i32)> {
    let text = std::fs::read_to_string(cluster.path("starts")).unwrap_or_default();
    let line = |line: &str| {
        let mut words = line.split(' ');
        let task = words.next()?.to_owned();
        Some((task, words.next()?.parse().ok()?, words.next()?.parse().ok()?))
    };
    text.lines().filter_map(line).collect()
}

/// Leaves a line and goes on when there is a file with the name of the task and its try, or when the test and its folder
/// are gone.
pub fn patient(cluster: &Cluster) -> String {
    let folder = cluster.path("");
    let folder = folder.display();
    format!(
        "echo $TENURE_TASK_ID $TENURE_TRY_NUMBER $$ >> {folder}/starts; \
         while [ -e {folder}/starts -a ! -e {folder}/$TENURE_TASK_ID-$TENURE_TRY_NUMBER ]; do sleep 0.05; done"
    )
}

pub fn wait_starts(cluster: &Cluster, count: usize, within: Duration) {
    let all = wait_until("the starts", within, || (starts(cluster).len() >= count).then_some(()));
    assert!(all.is_some(), "{:?}\n{}", starts(cluster), worker_log(cluster));
}

pub fn worker_log(cluster: &Cluster) -> String {
    std::fs::read_to_string(cluster.path("worker.log")).unwrap_or_default()
}
