//! The needs of tasks as a graph: every name exists, nothing waits for itself.

use std::collections::{HashMap, HashSet};

use crate::context::{Context, Field};
use crate::task::ReadTask;

pub fn check(cx: &mut Context<'_>, tasks: &[ReadTask], field: &Field<'_>) {
    let numbers: HashMap<&str, usize> =
        tasks.iter().enumerate().map(|(number, task)| (task.spec.id.as_str(), number)).collect();
    let mut edges: Vec<Vec<Edge>> = Vec::with_capacity(tasks.len());
    for task in tasks {
        edges.push(check_needs(cx, tasks, task, &numbers, field));
    }
    if let Some(cycle) = find_cycle(&edges) {
        report_cycle(cx, tasks, &cycle, field);
    }
}

/// The task that is needed, and which entry of `needs` says so.
type Edge = (usize, usize);

fn check_needs(
    cx: &mut Context<'_>,
    tasks: &[ReadTask],
    task: &ReadTask,
    numbers: &HashMap<&str, usize>,
    field: &Field<'_>,
) -> Vec<Edge> {
    let field = field.key(task.spec.id.as_str());
    let field = field.key("needs");
    let id = task.spec.id.as_str();
    let mut seen = HashSet::new();
    let mut edges = vec![];
    for (index, (need, at)) in task.spec.needs.iter().zip(&task.needs_at).enumerate() {
        let need = need.as_str();
        let problem = if need == id {
            format!("task {id:?} needs itself")
        } else if !seen.insert(need) {
            format!("task {id:?} needs {need:?} twice")
        } else if let Some(number) = numbers.get(need) {
            edges.push((*number, index));
            continue;
        } else if cx.is_full() {
            continue;
        } else {
            let guess = cx.suggestion(need, tasks.iter().map(|task| task.spec.id.as_str()));
            format!("task {id:?} needs {need:?}, which does not exist{guess}")
        };
        cx.error(*at, &field.index(index), problem);
    }
    edges
}

/// Depth first, on a stack of our own: a chain may be as long as a dag.
fn find_cycle(edges: &[Vec<Edge>]) -> Option<Vec<Edge>> {
    #[derive(Clone, Copy, PartialEq)]
    enum Mark {
        New,
        Open,
        Done,
    }
    let mut marks = vec![Mark::New; edges.len()];
    for start in 0..edges.len() {
        if marks[start] != Mark::New {
            continue;
        }
        // Each step: a task, and how many of its needs have been followed.
        let mut path: Vec<(usize, usize)> = vec![(start, 0)];
        marks[start] = Mark::Open;
        while let Some((task, followed)) = path.last_mut() {
            let Some((next, _)) = edges[*task].get(*followed) else {
                marks[*task] = Mark::Done;
                path.pop();
                continue;
            };
            *followed += 1;
            match marks[*next] {
                Mark::Done => {}
                Mark::New => {
                    marks[*next] = Mark::Open;
                    path.push((*next, 0));
                }
                Mark::Open => {
                    let from =
                        path.iter().position(|(task, _)| task == next).expect("an open task is on the path");
                    let step = |(task, followed): &(usize, usize)| (*task, edges[*task][followed - 1].1);
                    return Some(path[from..].iter().map(step).collect());
                }
            }
        }
    }
    None
}

fn report_cycle(cx: &mut Context<'_>, tasks: &[ReadTask], cycle: &[Edge], field: &Field<'_>) {
    const SHOWN: usize = 8;
    let name = |task: usize| tasks[task].spec.id.as_str();
    // Told from the task that comes first in the file, which does not depend on how it was found.
    let first = (0..cycle.len()).min_by_key(|index| cycle[*index].0).expect("a cycle has a task");
    let rotated: Vec<Edge> = cycle[first..].iter().chain(&cycle[..first]).copied().collect();
    let mut names: Vec<&str> = rotated.iter().take(SHOWN).map(|(task, _)| name(*task)).collect();
    let hidden = rotated.len() - names.len();
    let more = format!("… {hidden} more …");
    if hidden > 0 {
        names.push(&more);
    }
    names.push(name(rotated[0].0));
    let (task, need) = rotated[0];
    let field = field.key(name(task));
    let field = field.key("needs");
    let message = format!("tasks wait for each other in a cycle: {}", names.join(" → "));
    cx.error(tasks[task].needs_at[need], &field.index(need), message);
}
