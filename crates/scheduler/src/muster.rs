//! What nodes hold that nobody wants. An owner knows its attempts and asks their nodes about them; but a node may hold
//! attempts that no row names any more, because whoever was to stop them has died. So every node is asked what it holds once
//! it is linked, and all of them are after a takeover, once for all shards of this process; what a node names goes to the
//! owner of its scope, who knows whether it is wanted.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::StreamExt;
use futures::stream;
use tenure_dispatch::Executor;
use tenure_model::{Held, NodeId};
use tokio::sync::Notify;

use crate::desk::ReportDesk;

/// Nodes that are asked at once.
const AT_ONCE: usize = 64;
/// Shards that are taken over together are mustered for together.
const GATHER_FOR: Duration = Duration::from_millis(50);
/// Before whoever did not answer is asked again.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(1);

pub(crate) struct Muster {
    executor: Arc<dyn Executor>,
    desk: ReportDesk,
    /// How often all nodes were to be asked.
    calls: AtomicU64,
    called: Notify,
}

/// When a node last answered: on which link, and after how many calls.
type Answered = (u64, u64);

impl Muster {
    pub fn new(executor: Arc<dyn Executor>, desk: ReportDesk) -> Arc<Self> {
        Arc::new(Self { executor, desk, calls: AtomicU64::new(0), called: Notify::new() })
    }

    /// A shard has an owner in this process, to whom reports go already: any node may hold something of it.
    pub fn call(&self) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.called.notify_one();
    }

    /// Never ends.
    pub async fn hold(&self) {
        let mut links = self.executor.links();
        let mut answered: BTreeMap<NodeId, Answered> = BTreeMap::new();
        loop {
            tokio::time::sleep(GATHER_FOR).await;
            links.mark_unchanged();
            let all_answered = self.ask_the_unasked(&mut answered).await;
            tokio::select! {
                biased;
                () = self.called.notified() => {}
                changed = links.changed() => if changed.is_err() {
                    return std::future::pending().await;
                },
                () = tokio::time::sleep(ASK_AGAIN_AFTER), if !all_answered => {}
            }
        }
    }

    async fn ask_the_unasked(&self, answered: &mut BTreeMap<NodeId, Answered>) -> bool {
        let calls = self.calls.load(Ordering::Relaxed);
        let linked = self.executor.linked().into_iter();
        let now: BTreeMap<NodeId, Answered> = linked
            .filter_map(|node| self.executor.link(&node).map(|link| (node, (link.id, calls))))
            .collect();
        answered.retain(|node, _| now.contains_key(node));
        let unasked: Vec<(NodeId, Answered)> =
            now.into_iter().filter(|(node, current)| answered.get(node) != Some(current)).collect();
        let asked = unasked.len();
        let ask = |(node, current): (NodeId, Answered)| async move {
            let held = self.executor.inventory(&node).await?;
            Some((node, current, held))
        };
        let mut answers = stream::iter(unasked).map(ask).buffer_unordered(AT_ONCE);
        let mut heard = 0;
        while let Some(answer) = answers.next().await {
            if let Some((node, current, held)) = answer {
                heard += 1;
                self.hand_out(&node, held);
                answered.insert(node, current);
            }
        }
        heard == asked
    }

    fn hand_out(&self, node: &NodeId, held: Vec<Held>) {
        let mut by_scope: BTreeMap<String, Vec<Held>> = BTreeMap::new();
        for held in held {
            by_scope.entry(held.scope.clone()).or_default().push(held);
        }
        for (scope, held) in by_scope {
            self.desk.found(&scope, node, held);
        }
    }
}
