//! Goal: the page that says which test would notice what stays true.
//! Method: hold every test and every fault that it names against the sources.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// A table's last column, by its heading: it names nothing but tests and faults.
const SHOWN_BY: &str = "shown by";
/// What stands before a test.
const MARKS: [&str; 2] = ["#[test]", "#[tokio::test"];
/// Macros that make a test of each name they are given.
const LISTS: [&str; 4] = ["facts!", "on_both!", "on_every_wiring!", "dies_by!"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace").to_owned()
}

/// The tests and faults that the page names, with their lines.
fn names(page: &str) -> Vec<(usize, &str)> {
    let (mut names, mut inside) = (vec![], false);
    for (line, number) in page.lines().zip(1..) {
        let (rest, last) = line.trim_end_matches('|').rsplit_once('|').unwrap_or((line, ""));
        inside = line.starts_with('|') && (inside || last.trim() == SHOWN_BY);
        let (rest, shown_by) = if inside { (rest, last) } else { (line, "") };
        let those = quoted(rest).filter(|name| is_test_like(name) || is_fault_like(name));
        names.extend(those.chain(quoted(shown_by)).map(|name| (number, name)));
    }
    names
}

/// Whatever stands between backquotes.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// A fact: three words or more. Those of two are fields and functions.
fn is_test_like(name: &str) -> bool {
    let is_word =
        |word: &str| !word.is_empty() && word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    name.split('_').all(is_word) && name.split('_').count() > 2
}

fn is_fault_like(name: &str) -> bool {
    name.strip_prefix("chaos/").is_some_and(|fault| fault.chars().all(|c| c.is_ascii_lowercase() || c == '-'))
}

/// What the sources hold: tests, and the faults that chaos knows as `chaos/…`.
#[derive(Default)]
struct Sources {
    tests: BTreeSet<String>,
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
                self.take_in(&std::fs::read_to_string(&path).expect("sources are text"));
            }
        }
    }

    fn take_in(&mut self, text: &str) {
        let mut marked = false;
        for line in text.lines().map(str::trim_start) {
            marked |= MARKS.iter().any(|mark| line.starts_with(mark));
            if marked && let Some((_, function)) = line.split_once("fn ") {
                self.tests.extend(words(function).next().map(str::to_owned));
                marked = false;
            }
        }
        let lists = LISTS.iter().flat_map(|list| text.split(list).skip(1));
        self.tests.extend(lists.flat_map(|rest| words(argument(rest))).map(str::to_owned));
        // Its first function gives each fault its name.
        if let Some((_, scenario)) = text.split_once("impl Scenario {") {
            let named = scenario.split("\n    }").next().unwrap_or_default();
            self.faults.extend(named.split('"').skip(1).step_by(2).map(|fault| format!("chaos/{fault}")));
        }
    }

    fn missing(&self, page: &str) -> Vec<String> {
        let known = |name: &str| self.tests.contains(name) || self.faults.contains(name);
        let unknown = names(page).into_iter().filter(|(_, name)| !known(name));
        unknown.map(|(line, name)| format!("docs/verification.md:{line}: there is no test {name}")).collect()
    }
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '$').filter(|word| !word.is_empty())
}

/// What a macro is given, up to the bracket that ends it. Nothing, where its name is only mentioned.
fn argument(rest: &str) -> &str {
    let mut open = 0;
    for (at, c) in rest.char_indices() {
        match c {
            '(' | '[' | '{' => open += 1,
            ')' | ']' | '}' => open -= 1,
            _ => {}
        }
        if open < 1 && !c.is_whitespace() {
            return &rest[..at];
        }
    }
    ""
}

#[test]
fn every_test_that_the_page_names_exists() {
    let page = std::fs::read_to_string(root().join("docs/verification.md")).expect("the page is there");
    let missing = Sources::of_workspace().missing(&page);
    assert!(missing.is_empty(), "{}", missing.join("\n"));
    assert!(names(&page).len() > 50, "the tables are read");
}

const SOURCE: &str = r#"
fn helps_the_test_below() {}

#[tokio::test(flavor = "multi_thread")]
async fn it_holds_by_itself() {}

on_both!(
    it_holds_on_both,
);

impl Scenario {
    fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill-owner",
        }
    }

    fn deck() -> &'static str {
        "no-fault"
    }
}
"#;

#[track_caller]
fn check(page: &str, missing: &[&str]) {
    let mut sources = Sources::default();
    sources.take_in(SOURCE);
    assert_eq!(sources.missing(page), missing);
}

#[test]
fn a_name_that_does_not_exist_is_told_with_its_line() {
    check(
        "text\n| day | end | shown by |\n| --- | --- | --- |\n\
         | `x` | y | `it_holds_by_itself`, `chaos/kill-owner`; `x` |\n\n| a | `other` |\n",
        &["docs/verification.md:4: there is no test x"],
    );
}

#[test]
fn names_in_the_text_are_held_against_the_sources_too() {
    check(
        "It holds (`it_holds_on_both`, `it_does_not_hold`)\nand `chaos/…`, `chaos/kill-nobody`, `on_both`.",
        &[
            "docs/verification.md:1: there is no test it_does_not_hold",
            "docs/verification.md:2: there is no test chaos/kill-nobody",
        ],
    );
}

#[test]
fn what_is_no_test_and_no_fault_shows_nothing() {
    check(
        "`helps_the_test_below`\n`chaos/no-fault`",
        &[
            "docs/verification.md:1: there is no test helps_the_test_below",
            "docs/verification.md:2: there is no test chaos/no-fault",
        ],
    );
}
