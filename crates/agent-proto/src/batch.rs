//! From a queue of things to say to messages: whatever has queued up goes into the next one, and nothing waits for
//! company.

use futures::Stream;
use futures::stream;
use prost::Message;
use tenure_model::{Ack, AttemptId};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::wire;

/// A message is closed once it holds this much: far below what is read, and more than one write takes.
const BATCH_BYTES: usize = 1024 * 1024;
const BATCH_ITEMS: usize = 2048;

/// A message that is made of many small things.
pub trait Batch: Default {
    type Item;
    /// About how many bytes it adds.
    fn size(item: &Self::Item) -> usize;
    fn add(&mut self, item: Self::Item);
}

/// The messages for what comes out of a queue. Ends with the queue.
pub fn batches<B: Batch>(queue: UnboundedReceiver<B::Item>) -> impl Stream<Item = B> {
    stream::unfold((queue, None), async |(mut queue, left_over)| {
        let first = match left_over {
            Some(item) => item,
            None => queue.recv().await?,
        };
        let (mut batch, mut size) = (B::default(), B::size(&first));
        batch.add(first);
        for _ in 1..BATCH_ITEMS {
            let Ok(item) = queue.try_recv() else { break };
            size += B::size(&item);
            if size > BATCH_BYTES {
                return Some((batch, (queue, Some(item))));
            }
            batch.add(item);
        }
        Some((batch, (queue, None)))
    })
}

/// What an agent has to say.
#[derive(Clone, Debug)]
pub enum AgentItem {
    Heartbeat,
    /// A heartbeat that is answered by its number.
    Ping(u64),
    Hello(Box<wire::Hello>),
    Refusal(wire::Refusal),
    Report(wire::NumberedReport),
    Inventory(wire::InventoryAnswer),
}

impl Batch for wire::FromAgent {
    type Item = AgentItem;

    fn size(item: &AgentItem) -> usize {
        match item {
            AgentItem::Heartbeat => 0,
            AgentItem::Ping(_) => 10,
            AgentItem::Hello(hello) => hello.encoded_len(),
            AgentItem::Refusal(refusal) => refusal.encoded_len(),
            AgentItem::Report(report) => report.encoded_len(),
            AgentItem::Inventory(answer) => answer.encoded_len(),
        }
    }

    fn add(&mut self, item: AgentItem) {
        match item {
            AgentItem::Heartbeat => {}
            AgentItem::Ping(number) => self.ping = self.ping.max(number),
            AgentItem::Hello(hello) => self.hello = Some(*hello),
            AgentItem::Refusal(refusal) => self.refusals.push(refusal),
            AgentItem::Report(report) => self.reports.push(report),
            AgentItem::Inventory(answer) => self.inventories.push(answer),
        }
    }
}

/// What a replica has to say.
#[derive(Clone, Debug)]
pub enum ReplicaItem {
    Heartbeat,
    /// This ping was heard.
    Pong(u64),
    Welcome(wire::Welcome),
    Assignment(Box<wire::Assignment>),
    Stop(AttemptId),
    Ack {
        number: u64,
        ack: Ack,
    },
    InventoryRequest(u64),
}

impl Batch for wire::ToAgent {
    type Item = ReplicaItem;

    fn size(item: &ReplicaItem) -> usize {
        match item {
            ReplicaItem::Assignment(assignment) => assignment.encoded_len(),
            ReplicaItem::Welcome(welcome) => welcome.encoded_len(),
            ReplicaItem::Stop(_) => 20,
            ReplicaItem::Heartbeat
            | ReplicaItem::Pong(_)
            | ReplicaItem::Ack { .. }
            | ReplicaItem::InventoryRequest(_) => 10,
        }
    }

    fn add(&mut self, item: ReplicaItem) {
        match item {
            ReplicaItem::Heartbeat => {}
            ReplicaItem::Pong(number) => self.pong = self.pong.max(number),
            ReplicaItem::Welcome(welcome) => self.welcome = Some(welcome),
            ReplicaItem::Assignment(assignment) => self.assignments.push(*assignment),
            ReplicaItem::Stop(attempt) => self.stops.push(attempt.into()),
            ReplicaItem::Ack { number, ack } => self.add_ack(number, ack),
            ReplicaItem::InventoryRequest(request) => self.inventory_requests.push(request),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt;
    use tokio::sync::mpsc;

    use super::*;

    fn assignment(bytes: usize) -> ReplicaItem {
        ReplicaItem::Assignment(Box::new(wire::Assignment { scope: "x".repeat(bytes), ..Default::default() }))
    }

    async fn messages(items: Vec<ReplicaItem>) -> Vec<wire::ToAgent> {
        let (sender, queue) = mpsc::unbounded_channel();
        for item in items {
            sender.send(item).unwrap();
        }
        drop(sender);
        batches(queue).collect().await
    }

    #[tokio::test]
    async fn what_has_queued_up_goes_into_one_message_in_its_order() {
        let ack = |number| ReplicaItem::Ack { number, ack: Ack::Accepted };
        let messages = messages(vec![ack(3), ReplicaItem::Heartbeat, ack(1), ack(2)]).await;
        assert_eq!(messages, [wire::ToAgent { accepted: vec![3, 1, 2], ..Default::default() }]);
    }

    #[tokio::test]
    async fn a_message_is_closed_before_it_is_too_large_to_be_read() {
        let sizes = [BATCH_BYTES - 100, 200, BATCH_BYTES * 2, 10, BATCH_BYTES];
        let messages = messages(sizes.map(assignment).into()).await;
        let scopes: Vec<Vec<usize>> = messages
            .iter()
            .map(|message| message.assignments.iter().map(|assignment| assignment.scope.len()).collect())
            .collect();
        assert_eq!(
            scopes,
            sizes.map(|size| vec![size]),
            "each would have taken its neighbour over the limit"
        );
    }

    #[tokio::test]
    async fn many_small_things_take_few_messages_and_lose_none() {
        let acks = (0..5_000).map(|number| ReplicaItem::Ack { number, ack: Ack::Retry });
        let messages = messages(acks.collect()).await;
        assert_eq!(messages.len(), 3);
        let numbers: Vec<u64> = messages.iter().flat_map(|message| message.retry.clone()).collect();
        assert_eq!(numbers, (0..5_000).collect::<Vec<_>>());
    }
}
