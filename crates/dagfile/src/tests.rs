//! Goal: a good file means what its author meant, a bad file says what is wrong, where, and what to do
//! instead; and no text does harm. Method: files as text, one fact per test.

mod broken;
mod good;
mod hostile;

use std::collections::BTreeMap;

use tenure_model::{DagSpec, EmbeddedFile};

use crate::{FileError, FileSource};

/// Files in memory.
#[derive(Default)]
struct Beside(BTreeMap<String, EmbeddedFile>);

impl Beside {
    fn with(mut self, path: &str, content: &str, executable: bool) -> Self {
        self.0.insert(path.into(), EmbeddedFile { content: content.into(), executable });
        self
    }
}

impl FileSource for Beside {
    fn read(&self, path: &str) -> Result<EmbeddedFile, FileError> {
        self.0.get(path).cloned().ok_or(FileError::NotFound)
    }
}

fn files() -> Beside {
    Beside::default().with("transform.py", "print('t')", false).with("./load", "#!/bin/sh", true)
}

fn good(text: &str) -> DagSpec {
    crate::parse("dags/etl.yaml", text, &files()).unwrap_or_else(|errors| panic!("{errors}"))
}
