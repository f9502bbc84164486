//! P4 and P8: what clients and timetables asked for.

use jiff::SignedDuration;

use crate::history::{Answer, Asked, Call, Entry, History, RunName, RunRow, TrailRow};

pub(super) fn trigger_makes_two_runs(history: &mut History) -> Option<()> {
    let run = acknowledged_trigger(history)?.0;
    twin(history, &run, "-again");
    Some(())
}

pub(super) fn unasked_run(history: &mut History) -> Option<()> {
    let run = acknowledged_trigger(history)?.0;
    let name = twin(history, &run, "-unasked");
    history.runs.iter_mut().find(|row| row.name == name)?.idempotency_key = Some("nobody's".into());
    Some(())
}

pub(super) fn tick_without_a_run(history: &mut History) -> Option<()> {
    let schedule = history.schedules.first()?.clone();
    let run = tick(history, &schedule.dag)?;
    forget(history, &run);
    Some(())
}

pub(super) fn tick_with_two_runs(history: &mut History) -> Option<()> {
    let schedule = history.schedules.first()?.clone();
    let run = tick(history, &schedule.dag)?;
    twin(history, &run, "-again");
    Some(())
}

pub(super) fn run_never_ends(history: &mut History) -> Option<()> {
    let run =
        history.runs.iter().find(|row| last_run_event(history, &row.name) == Some("finished"))?.name.clone();
    let last = history.trail.iter_mut().rev().find(|row| {
        row.run.as_ref() == Some(&run)
            && row.entries.iter().any(|entry| entry.task.is_none() && entry.event == "finished")
    })?;
    last.entries.retain(|entry| entry.task.is_some());
    history.runs.iter_mut().find(|row| row.name == run)?.state = "running".into();
    Some(())
}

pub(super) fn refused_and_yet_there(history: &mut History) -> Option<()> {
    let run = acknowledged_trigger(history)?.0;
    let trigger = history
        .calls
        .iter_mut()
        .find(|call| call.run == run && matches!(call.what, Asked::Trigger { .. }))?;
    trigger.answer = Answer::Refused;
    Some(())
}

pub(super) fn acknowledged_run_is_gone(history: &mut History) -> Option<()> {
    let run = acknowledged_trigger(history)?.0;
    forget(history, &run);
    Some(())
}

pub(super) fn acknowledged_clear_is_gone(history: &mut History) -> Option<()> {
    let at = history.trail.first()?.committed_at - SignedDuration::from_secs(1);
    let call = history.calls.iter().find(|call| {
        matches!(call.what, Asked::Clear { cleared: 1.. }) && call.answer == Answer::Acknowledged
    })?;
    let mut unheard = call.clone();
    (unheard.sent_at, unheard.answered_at) = (at, at);
    history.calls.push(unheard);
    Some(())
}

pub(super) fn acknowledged_cancel_is_gone(history: &mut History) -> Option<()> {
    let at = history.trail.first()?.committed_at - SignedDuration::from_secs(1);
    let run = acknowledged_trigger(history)?.0;
    let what = Asked::End { state: "failed".into() };
    history.calls.push(Call { what, run, sent_at: at, answered_at: at, answer: Answer::Acknowledged });
    Some(())
}

/// A second row for a run, complete with a story of its own.
fn twin(history: &mut History, of: &RunName, suffix: &str) -> RunName {
    let name = RunName::new(&of.dag, format!("{}{suffix}", of.run));
    let row = history.runs.iter().find(|row| row.name == *of).expect("the run is there").clone();
    history.runs.push(RunRow { name: name.clone(), state: "success".into(), ..row });
    let at = history.trail.last().map_or(history.ended_at, |row| row.committed_at);
    for (event, from, to) in
        [("created", "", "queued"), ("started", "queued", "running"), ("finished", "running", "success")]
    {
        let entry = Entry { event: event.into(), from: from.into(), to: to.into(), ..Entry::default() };
        history.trail.push(TrailRow {
            seq: history.trail.last().map_or(1, |row| row.seq + 1),
            committed_at: at,
            run: Some(name.clone()),
            actor: "twin".into(),
            scope: None,
            epoch: None,
            entries: vec![entry],
        });
    }
    name
}

fn acknowledged_trigger(history: &History) -> Option<(RunName, String)> {
    let plain = |run: &RunName| {
        // Nothing else was asked of it, so that nothing else is missing with it.
        history.calls.iter().filter(|call| call.run == *run).count() == 1
    };
    history.calls.iter().find_map(|call| match (&call.what, call.answer) {
        (Asked::Trigger { key }, Answer::Acknowledged) if plain(&call.run) => {
            Some((call.run.clone(), key.clone()))
        }
        _ => None,
    })
}

fn tick(history: &History, dag: &str) -> Option<RunName> {
    history.runs.iter().find(|run| run.scheduled && run.name.dag == dag).map(|run| run.name.clone())
}

fn last_run_event<'a>(history: &'a History, run: &RunName) -> Option<&'a str> {
    let of_run = history.trail.iter().filter(|row| row.run.as_ref() == Some(run));
    let last = of_run.flat_map(|row| &row.entries).rfind(|entry| entry.task.is_none())?;
    Some(&last.event)
}

/// As if the run had never been.
fn forget(history: &mut History, run: &RunName) {
    history.trail.retain(|row| row.run.as_ref() != Some(run));
    history.runs.retain(|row| row.name != *run);
    history.tasks.retain(|row| row.run != *run);
    history.tries.retain(|row| row.run != *run);
    history.effects.retain(|effect| effect.starts[0].run != *run);
}
