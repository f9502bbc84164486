//! Goal: a task runs as the user it asks for, if its node allows it, and that user gets at nothing that is not its own.
//! Method: real processes of the user `nobody`; only root can do that, so others pass over most of it.

mod common;

use std::os::unix::fs::PermissionsExt;

use common::{Bench, Ended};
use tenure_agent::AgentError;
use tenure_model::{Assignment, EmbeddedFile, FailReason, Outcome};

const USER: &str = "nobody";

/// Agents of this bench let tasks run as `nobody`, who may pass through the folders above.
fn bench() -> Option<Bench> {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can start processes of other users");
        return None;
    }
    let bench = Bench::with(|config| config.allow_run_as = vec![USER.into(), "no-such-user".into()]);
    std::fs::set_permissions(bench.folder.path(), std::fs::Permissions::from_mode(0o711)).unwrap();
    Some(bench)
}

fn as_user(user: &str, task: Assignment) -> Assignment {
    Assignment { run_as: Some(user.into()), ..task }
}

fn why(ended: Ended) -> String {
    match ended.outcome {
        Outcome::Failed { reason: FailReason::CannotStart { error } } => error,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_task_runs_as_its_user_with_everything_that_belongs_to_it() {
    let Some(bench) = bench() else { return };
    let agent = bench.agent().await;
    let script = "id -un; id -Gn; echo $USER $LOGNAME; [ \"$HOME\" = ~nobody ] && echo home; stat -c '%U %a' .; \
                  cat note/hello; stat -c %U note/hello; touch left; echo 5 > $TENURE_RESULT; cat /proc/self/status | \
                  grep -E '^(Uid|CapEff)'";
    let mut task = as_user(USER, bench.bash(script));
    task.files.insert("note/hello".into(), EmbeddedFile { content: "hello\n".into(), executable: false });
    let ended = bench.run(&agent, task).await;
    let log = bench.log().await;
    assert_eq!(ended, Ended { outcome: Outcome::Success, result: Some(5.into()) }, "{log}");
    let lines: Vec<&str> = log.lines().collect();
    assert_eq!(lines[0], USER, "{log}");
    assert!(!lines[1].contains("root"), "root's groups are left behind: {log}");
    assert_eq!(&lines[2..7], ["nobody nobody", "home", "nobody 700", "hello", "nobody"], "{log}");
    assert!(log.contains("CapEff:\t0000000000000000"), "{log}");
    // The next one of the same user finds what the first has left, and the agent's own user has a folder of its own.
    assert_eq!(bench.run(&agent, as_user(USER, bench.bash("test -e left"))).await.outcome, Outcome::Success);
    assert_eq!(bench.run(&agent, bench.bash("test ! -e left")).await.outcome, Outcome::Success);
}

#[tokio::test]
async fn a_user_whom_the_node_does_not_allow_or_know_is_named() {
    let Some(bench) = bench() else { return };
    let agent = bench.agent().await;
    let refused = why(bench.run(&agent, as_user("daemon", bench.bash("true"))).await);
    assert!(refused.contains("\"daemon\"") && refused.contains("--allow-run-as daemon"), "{refused}");
    let unknown = why(bench.run(&agent, as_user("no-such-user", bench.bash("true"))).await);
    assert!(unknown.contains("\"no-such-user\"") && unknown.contains("no such user"), "{unknown}");
    let own = bench.run(&agent, as_user("root", bench.bash("id -un"))).await;
    assert_eq!(own.outcome, Outcome::Success, "the agent's own user needs no permission");
}

#[tokio::test]
async fn an_agent_that_is_not_root_says_that_it_cannot_run_as_others() {
    if rustix::process::geteuid().is_root() {
        println!("skipped: this test is about agents that are not root");
        return;
    }
    let bench = Bench::with(|config| config.allow_run_as = vec![USER.into()]);
    assert!(matches!(bench.try_agent().await, Err(AgentError::CannotRunAs(_))));
}

#[tokio::test]
async fn what_a_user_puts_into_its_folder_is_no_way_to_what_is_not_its_own() {
    let Some(bench) = bench() else { return };
    let agent = bench.agent().await;
    let private = bench.path("private");
    std::fs::create_dir(&private).unwrap();
    std::fs::set_permissions(&private, std::fs::Permissions::from_mode(0o700)).unwrap();
    let link = as_user(USER, bench.bash(&format!("ln -s {} lib", private.display())));
    assert_eq!(bench.run(&agent, link).await.outcome, Outcome::Success);
    let mut evil = as_user(USER, bench.bash("true"));
    evil.files.insert("lib/evil".into(), EmbeddedFile { content: "x".into(), executable: true });
    let error = why(bench.run(&agent, evil).await);
    assert!(error.contains("lib/evil"), "{error}");
    assert_eq!(std::fs::read_dir(&private).unwrap().count(), 0, "the agent has written through a link");

    // Orders hold secrets: neither one's own nor anybody else's can be read, and nobody learns what else runs here.
    let mut curious = as_user(
        USER,
        bench.bash(
            "here=$(dirname $TENURE_RESULT); cat $here/assignment.json && exit 1; ls $here && exit 2; \
             ls $here/.. && exit 3; cat $here/output && exit 4; ls ../../.. && exit 5; exit 0",
        ),
    );
    curious.secrets = vec!["hunter22".into()];
    assert_eq!(bench.run(&agent, curious).await.outcome, Outcome::Success, "{}", bench.log().await);
}

#[tokio::test]
async fn a_program_that_the_user_cannot_start_is_named_as_ever() {
    let Some(bench) = bench() else { return };
    let agent = bench.agent().await;
    let missing = why(bench.run(&agent, as_user(USER, bench.assignment(&["no-such-program-here"]))).await);
    assert!(missing.contains("no-such-program-here") && missing.contains("PATH"), "{missing}");
    let mut plain = as_user(USER, bench.assignment(&["./plain"]));
    plain.files.insert("plain".into(), EmbeddedFile { content: "echo".into(), executable: false });
    let not_executable = why(bench.run(&agent, plain).await);
    assert!(not_executable.contains("chmod +x"), "{not_executable}");
}
