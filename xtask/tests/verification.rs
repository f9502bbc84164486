//! Goal: the page that says which test would notice what stays true.
//! Method: hold every name in its tables against the sources.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// A table's last column, by its heading.
const SHOWN_BY: &str = "shown by";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace").to_owned()
}

/// Whatever stands between backquotes in the last column of every table that shows something.
fn names(page: &str) -> Vec<(usize, String)> {
    let (mut names, mut inside) = (vec![], false);
    for (number, line) in page.lines().enumerate() {
        if !line.starts_with('|') {
            inside = false;
            continue;
        }
        let last = line.trim_end_matches('|').rsplit('|').next().unwrap_or_default().trim();
        inside |= last == SHOWN_BY;
        if inside {
            let quoted = last.split('`').skip(1).step_by(2);
            names.extend(quoted.map(|name| (number + 1, name.to_owned())));
        }
    }
    names
}

/// What the sources hold: functions, and the faults that chaos knows as `chaos/…`.
#[derive(Default)]
struct Sources {
    functions: BTreeSet<String>,
    faults: BTreeSet<String>,
}

impl Sources {
    fn of_workspace() -> Self {
        let mut sources = Self::default();
        for folder in ["crates", "chaos", "xtask"] {
            sources.read(&root().join(folder));
        }
        sources
    }

    fn read(&mut self, folder: &Path) {
        let entries =
            std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        for entry in entries {
            let path = entry.expect("a readable folder").path();
            if path.is_dir() {
                self.read(&path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).expect("sources are text");
                self.take_in(&text, path.ends_with("harness/nemesis.rs"));
            }
        }
    }

    fn take_in(&mut self, text: &str, names_faults: bool) {
        let name = |rest: &str| {
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
            rest[..end].to_owned()
        };
        self.functions.extend(text.split("fn ").skip(1).map(name));
        if names_faults {
            self.faults.extend(text.split('"').skip(1).step_by(2).map(|fault| format!("chaos/{fault}")));
        }
    }

    fn missing(&self, page: &str) -> Vec<String> {
        let known = |name: &String| self.functions.contains(name) || self.faults.contains(name);
        let unknown = names(page).into_iter().filter(|(_, name)| !known(name));
        unknown.map(|(line, name)| format!("docs/verification.md:{line}: there is no test {name}")).collect()
    }
}

#[test]
fn every_test_that_the_page_names_exists() {
    let page = std::fs::read_to_string(root().join("docs/verification.md")).expect("the page is there");
    let missing = Sources::of_workspace().missing(&page);
    assert!(missing.is_empty(), "{}", missing.join("\n"));
    assert!(names(&page).len() > 50, "the tables are read");
}

#[test]
fn a_name_that_does_not_exist_is_told_with_its_line() {
    let mut sources = Sources::default();
    sources.take_in("#[test]\nfn it_holds() {}\nSelf::Kill => \"kill-owner\",", true);
    let page = "text\n| day | end | shown by |\n| --- | --- | --- |\n\
                | `x` | y | `it_holds`, `chaos/kill-owner`; `it_does_not` |\n\n| a | `other` |\n";
    assert_eq!(sources.missing(page), ["docs/verification.md:4: there is no test it_does_not"]);
}
