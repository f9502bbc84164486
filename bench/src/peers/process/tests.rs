//! Goal: what is started ends in time and leaves nothing behind; what fails says its last words.

use super::*;

fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    command
}

fn failure(script: &str, within: Duration) -> String {
    let folder = tempfile::tempdir().unwrap();
    run("it", &shell(script), &folder.path().join("log"), within).unwrap_err().to_string()
}

const LONG: Duration = Duration::from_secs(60);

#[test]
fn a_command_that_fails_says_how_and_its_last_lines() {
    assert_eq!(
        failure("echo first; echo no such package >&2; exit 3", LONG),
        "it failed (exit status: 3):\nfirst\nno such package"
    );
}

#[test]
fn a_program_that_is_not_there_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let missing = Command::new("no-such-program-anywhere");
    let error = run("installing", &missing, &folder.path().join("log"), LONG).unwrap_err().to_string();
    assert!(error.contains("no-such-program-anywhere"), "{error}");
}

#[test]
fn a_command_that_takes_too_long_is_ended() {
    let error = failure("echo still at it; sleep 1000", Duration::from_millis(300));
    assert_eq!(error, "it took longer than 0 s:\nstill at it");
}

#[test]
fn nothing_is_left_of_a_process_and_what_it_has_started_in_other_groups_and_sessions() {
    let folder = tempfile::tempdir().unwrap();
    let script = "setsid sleep 1000 & sleep 1000 & echo up; wait";
    let process = Process::start(&shell(script), &folder.path().join("log")).unwrap();
    let root = process.pid();
    let deadline = Instant::now() + LONG;
    // The guard, the shell and the two that sleep.
    while family(&[root]).len() < 4 {
        assert!(Instant::now() < deadline, "they are not started in time");
        std::thread::sleep(Duration::from_millis(5));
    }
    let all = family(&[root]);
    drop(process);
    let alive = |pid: &&u32| Stat::of(**pid).is_ok_and(|stat| !stat.defunct);
    assert_eq!(all.iter().find(alive), None);
}

#[test]
fn one_talks_line_by_line_and_what_else_is_said_is_passed_over() {
    let folder = tempfile::tempdir().unwrap();
    let script = "echo hello; echo ready; read -r word; echo heard $word; read -r _";
    let mut talk = Talk::start(&shell(script), &folder.path().join("log")).unwrap();
    talk.hear("ready", LONG).unwrap();
    talk.say("go").unwrap();
    talk.hear("heard go", LONG).unwrap();
    let error = talk.hear("more", Duration::from_millis(100)).unwrap_err().to_string();
    assert!(error.starts_with("no \"more\" within 0 s"), "{error}");
}

#[test]
fn one_that_ends_early_says_its_last_lines() {
    let folder = tempfile::tempdir().unwrap();
    let mut talk = Talk::start(&shell("echo refused >&2"), &folder.path().join("log")).unwrap();
    let error = talk.hear("ready", LONG).unwrap_err().to_string();
    assert_eq!(error, "it ended before it was \"ready\":\nrefused");
}

#[test]
fn only_the_last_lines_that_say_something_are_kept() {
    let text: String = (0..20).map(|number| format!("line {number}\n\n")).collect();
    assert_eq!(last_lines(&text).lines().count(), LAST_LINES);
    assert!(last_lines(&text).ends_with("line 19"));
    assert_eq!(last_lines(""), "");
}

#[test]
fn memory_is_the_share_of_a_process_in_what_it_has() {
    let rollup = "55d-7ff ---p 0 00:00 0 [rollup]\nRss:  147252 kB\nPss:  12500 kB\nPss_Dirty:  100 kB\n";
    assert_eq!(proportional(rollup), Some(12.8));
    assert_eq!(proportional(""), None);
}
