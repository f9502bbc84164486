//! P5, and stories that are illegal or incomplete.

use super::{entries, healthy_success};
use crate::history::{Asked, Entry, History, RunName, TaskRow, TrailRow};

pub(super) fn finished_task_begins_again(history: &mut History) -> Option<()> {
    let done = history.tasks.iter_mut().find(|task| task.state == "success")?;
    done.state = "skipped".into();
    let (run, task) = (done.run.clone(), done.task.clone());
    let entry = Entry {
        task: Some(task),
        event: "run_ended".into(),
        from: "success".into(),
        to: "skipped".into(),
        ..Entry::default()
    };
    add_row(history, &run, entry)
}

pub(super) fn cleared_by_nobody(history: &mut History) -> Option<()> {
    let by_a_clear = |row: &&TrailRow| {
        let cleared =
            |entry: &Entry| entry.event == "cleared" && matches!(entry.from.as_str(), "success" | "failed");
        row.entries.iter().any(cleared)
    };
    let run = history.trail.iter().find(by_a_clear)?.run.clone()?;
    let before = history.calls.len();
    history.calls.retain(|call| call.run != run || matches!(call.what, Asked::Trigger { .. }));
    (history.calls.len() < before).then_some(())
}

pub(super) fn step_is_missing(history: &mut History) -> Option<()> {
    let row =
        history.trail.iter_mut().find(|row| row.entries.iter().any(|entry| entry.event == "scheduled"))?;
    let at = row.entries.iter().position(|entry| entry.event == "scheduled")?;
    row.entries.remove(at);
    Some(())
}

pub(super) fn steps_change_places(history: &mut History) -> Option<()> {
    let row = history.trail.iter_mut().find_map(|row| {
        let at = row.entries.windows(2).position(|pair| {
            pair[0].event == "scheduled" && pair[1].event == "bound" && pair[0].task == pair[1].task
        })?;
        Some((row, at))
    });
    let (row, at) = row?;
    row.entries.swap(at, at + 1);
    Some(())
}

pub(super) fn success_out_of_nothing(history: &mut History) -> Option<()> {
    let attempt = healthy_success(history)?.2;
    history.effects.iter_mut().find(|effect| effect.attempt == attempt)?.end = None;
    Some(())
}

pub(super) fn failure_out_of_nothing(history: &mut History) -> Option<()> {
    let (run, task, attempt) = healthy_success(history)?;
    let end = entries(history)
        .find(|entry| entry.event == "succeeded" && entry.attempt.as_ref() == Some(&attempt))?;
    end.event = "failed".into();
    end.to = "failed".into();
    end.reason = Some("exit code 1".into());
    history.tasks.iter_mut().find(|row| row.run == run && row.task == task)?.state = "failed".into();
    Some(())
}

pub(super) fn run_ends_before_its_task(history: &mut History) -> Option<()> {
    let run = history.runs.iter().find(|run| run.state == "success")?.name.clone();
    let task = TaskRow { run, task: "forgotten".into(), state: "none".into(), try_number: 0, attempt: None };
    history.tasks.push(task);
    Some(())
}

pub(super) fn table_differs_from_the_trail(history: &mut History) -> Option<()> {
    history.tasks.iter_mut().find(|task| task.state == "success")?.state = "failed".into();
    Some(())
}

pub(super) fn try_is_not_kept(history: &mut History) -> Option<()> {
    let retried = |row: &TrailRow| {
        let entry = row.entries.iter().find(|entry| entry.event == "retried")?;
        Some((row.run.clone()?, entry.task.clone()?))
    };
    let (run, task) = history.trail.iter().find_map(retried)?;
    let before = history.tries.len();
    history.tries.retain(|row| (&row.run, &row.task) != (&run, &task));
    (history.tries.len() < before).then_some(())
}

pub(super) fn process_outlives_its_run(history: &mut History) -> Option<()> {
    let (run, task, attempt) = healthy_success(history)?;
    // Somebody who was stopped, as the trail has it, and did not stop.
    let end = entries(history)
        .find(|entry| entry.event == "succeeded" && entry.attempt.as_ref() == Some(&attempt))?;
    end.event = "marked".into();
    end.reason = Some("marked success by a user".into());
    let ended_at = history.ended_at;
    let effect = history.effects.iter_mut().find(|effect| effect.attempt == attempt)?;
    (effect.end, effect.seen_at) = (None, ended_at);
    history.tasks.iter().any(|row| row.run == run && row.task == task).then_some(())
}

fn add_row(history: &mut History, run: &RunName, entry: Entry) -> Option<()> {
    let last = history.trail.last()?;
    let row = TrailRow {
        seq: last.seq + 1,
        committed_at: last.committed_at,
        run: Some(run.clone()),
        actor: "nobody".into(),
        scope: None,
        epoch: None,
        entries: vec![entry],
    };
    history.trail.push(row);
    Some(())
}
