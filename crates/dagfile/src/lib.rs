//! Dag files: YAML text in, a complete [`DagSpec`] or a list of what is wrong out.
//!
//! Promises: every problem has a file, a line and a field; several problems are reported at once; nothing
//! in a file makes reading it panic, overflow the stack, or take longer than its size explains. Files that
//! tasks name are read through a [`FileSource`] and become part of the version.
//!
//! Does not promise that the dag will succeed: programs, pools, secrets and nodes are looked for when a
//! task is handed out, since they may come after the dag.

mod context;
mod dag;
mod diagnostics;
mod files;
mod graph;
mod keys;
mod kind;
mod placing;
mod reading;
mod task;
mod yaml;

use tenure_model::DagSpec;

use context::{Context, Field};
use yaml::Place;

pub use diagnostics::{Diagnostic, Diagnostics};
pub use files::{Attached, FileError, FileSource, Folder, MOST_EMBEDDED};
pub use keys::json_schema;

/// A dag of 10,000 tasks, each with a few lines, fits with room to spare.
pub const MOST_TEXT: usize = 4 << 20;
pub const MOST_TASKS: usize = 20_000;

/// Reads a dag file. `file_name` is what error messages call it.
pub fn parse(file_name: &str, text: &str, files: &dyn FileSource) -> Result<DagSpec, Diagnostics> {
    let mut cx = Context::new(file_name, files);
    let spec = read(&mut cx, text);
    cx.finish(spec)
}

fn read(cx: &mut Context<'_>, text: &str) -> Option<DagSpec> {
    if text.len() > MOST_TEXT {
        let message = format!("a dag file may have at most 4 MiB; this one has {} bytes", text.len());
        cx.error(Place::START, &Field::Root, message);
        return None;
    }
    let mut problems = vec![];
    let root = yaml::read(text.trim_start_matches('\u{feff}'), &mut problems);
    for problem in problems {
        cx.yaml_error(problem, &Field::Root);
    }
    match root {
        Ok(Some(root)) if !root.is_null() => dag::read(cx, &root),
        Ok(_) => {
            cx.error(Place::START, &Field::Root, "the file is empty; a dag needs at least an id and a task");
            None
        }
        Err(error) => {
            cx.yaml_error(error, &Field::Root);
            None
        }
    }
}

#[cfg(test)]
mod tests;
