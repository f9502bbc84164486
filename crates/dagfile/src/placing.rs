//! Where a task may run, where it would rather run, and as whom.

use tenure_model::{Affinity, Preference, QueueName, Toleration};

use crate::context::{Context, Field};
use crate::keys::{self, HIGHEST_WEIGHT, MOST_PREFERENCES};
use crate::reading::{self, Fields};
use crate::yaml::Node;

/// A list of `key` and `key=value`, or one of them.
pub fn tolerations(cx: &mut Context<'_>, node: &Node, field: &Field<'_>) -> Option<Vec<Toleration>> {
    let items = reading::one_or_many(cx, node, field)?;
    reading::each(cx, items, field, |cx, node, field| {
        let read = reading::text(cx, node, field)?.parse().ok();
        read.or_else(|| {
            reading::wrong(cx, node, field, "key or key=value, without spaces, commas and quotes")
        })
    })
}

pub fn affinity(cx: &mut Context<'_>, node: &Node, field: &Field<'_>) -> Option<Affinity> {
    let mut fields = Fields::open(cx, node, field, keys::AFFINITY, "affinity")?;
    let (prefer, spread) = (fields.get("prefer"), fields.get("spread"));
    fields.done();
    // Both are read before either is given up: an author wants to hear of all mistakes at once.
    let prefer = prefer.map_or(Some(vec![]), |node| preferences(cx, node, &field.key("prefer")));
    let spread = spread.map_or(Some(None), |node| label(cx, node, &field.key("spread")).map(Some));
    Some(Affinity { prefer: prefer?, spread: spread? })
}

fn preferences(cx: &mut Context<'_>, node: &Node, field: &Field<'_>) -> Option<Vec<Preference>> {
    let items = reading::list(cx, node, field)?;
    if items.len() > MOST_PREFERENCES {
        let message = format!("{field} has {} entries, and {MOST_PREFERENCES} is the most", items.len());
        cx.error(node.at, field, message);
        return None;
    }
    reading::each(cx, items, field, preference)
}

fn preference(cx: &mut Context<'_>, node: &Node, field: &Field<'_>) -> Option<Preference> {
    let mut fields = Fields::open(cx, node, field, keys::PREFERENCE, "a preference")?;
    let (label, weight) = (fields.get("label"), fields.get("weight"));
    fields.done();
    let weight = match weight {
        Some(node) => reading::count(cx, node, &field.key("weight"), 1, HIGHEST_WEIGHT)?,
        None => 1,
    };
    let (label, field) = (label?, field.key("label"));
    let text = reading::text(cx, label, &field)?;
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => {
            Some(Preference { label: key.to_owned(), value: value.to_owned(), weight })
        }
        _ => reading::wrong(cx, label, &field, "a label with its value, like disk=ssd"),
    }
}

/// The name of a label, without a value.
fn label(cx: &mut Context<'_>, node: &Node, field: &Field<'_>) -> Option<String> {
    let name = reading::name(cx, node, field)?;
    if name.contains('=') {
        return reading::wrong(cx, node, field, "the name of a label, like zone, without a value");
    }
    Some(name)
}

/// Agents take a list of queues with commas between them.
pub fn queue(cx: &mut Context<'_>, node: &Node, field: &Field<'_>) -> Option<QueueName> {
    let name = reading::name(cx, node, field)?;
    if name.contains(|c: char| c.is_whitespace() || c == ',') {
        return reading::wrong(cx, node, field, "the name of one queue, without spaces and commas");
    }
    Some(QueueName::from(name))
}

/// What no password file can hold is no user, on whatever machine.
pub fn user(cx: &mut Context<'_>, node: &Node, field: &Field<'_>) -> Option<String> {
    let name = reading::name(cx, node, field)?;
    if name.starts_with('-') || name.contains(|c: char| c.is_whitespace() || c == ':' || c == '/') {
        return reading::wrong(cx, node, field, "the name of a user");
    }
    Some(name)
}
