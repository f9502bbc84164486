//! The story of one run, for people: what the trail, its tasks and its clients say, in the order of time.

use jiff::Timestamp;

use crate::history::{Asked, Entry, Fault, History, RunName};

/// Faults count when they fall into the run's life.
pub fn tell(history: &History, run: &RunName) -> String {
    let mut lines: Vec<(Timestamp, String)> = vec![];
    for row in history.trail.iter().filter(|row| row.run.as_ref() == Some(run)) {
        let epoch = row.epoch.map_or(String::new(), |epoch| format!(" e{epoch}"));
        let author = format!("{}{epoch}", row.actor);
        lines
            .extend(row.entries.iter().map(|entry| (row.committed_at, format!("{author}: {}", step(entry)))));
    }
    for call in history.calls.iter().filter(|call| call.run == *run) {
        let what = match &call.what {
            Asked::Trigger { key } => format!("trigger (key {key})"),
            Asked::Clear { cleared } => format!("clear ({cleared} tasks)"),
            Asked::End { state } => format!("end it as {state}"),
        };
        lines.push((call.sent_at, format!("client: {what}, sent")));
        lines.push((call.answered_at, format!("client: {what}, {:?}", call.answer)));
    }
    for effect in &history.effects {
        let attempt = short(&effect.attempt);
        let of_run = |start: &&crate::history::Start| start.run == *run;
        let Some(first) = effect.starts.iter().find(of_run) else { continue };
        for start in effect.starts.iter().filter(of_run) {
            lines.push((start.at, format!("task {}: attempt {attempt} starts", start.task)));
        }
        let end = match effect.end {
            Some(end) => format!("ends with exit code {}", end.code),
            None => "is seen for the last time".to_owned(),
        };
        lines.push((effect.seen_at, format!("task {}: attempt {attempt} {end}", first.task)));
    }
    let (Some(begin), Some(end)) =
        (lines.iter().map(|line| line.0).min(), lines.iter().map(|line| line.0).max())
    else {
        return format!("nothing is known of {run}");
    };
    for Fault { name, target, at, until, .. } in
        history.faults.iter().filter(|fault| fault.until >= begin && fault.at <= end)
    {
        lines.push((*at, format!("fault: {name} of {target}")));
        lines.push((*until, format!("fault: {name} of {target} is over")));
    }
    lines.sort_by_key(|line| line.0);
    lines.into_iter().map(|(at, what)| format!("  {at:.6}  {what}\n")).collect()
}

fn step(entry: &Entry) -> String {
    let subject = entry.task.as_ref().map_or("the run".to_owned(), |task| format!("task {task}"));
    let mut text = format!("{subject} {} ({} → {})", entry.event, entry.from, entry.to);
    if let Some(attempt) = &entry.attempt {
        text += &format!(", attempt {}", short(attempt));
    }
    if let Some(node) = &entry.node {
        text += &format!(" on {node}");
    }
    if let Some(reason) = &entry.reason {
        text += &format!(": {reason}");
    }
    text
}

/// The end of an id: the beginning of ids made in one second is the same.
fn short(attempt: &str) -> &str {
    attempt.rsplit('-').next().unwrap_or(attempt)
}
