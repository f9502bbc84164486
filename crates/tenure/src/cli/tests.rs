//! Goal: names, flags, help and exit codes are consistent. Method: walk the definitions themselves, and let
//! commands talk to a small server with canned answers.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

use clap::CommandFactory;

use super::*;

#[test]
fn the_definitions_are_sound() {
    Cli::command().debug_assert();
}

#[test]
fn every_command_and_every_argument_has_a_help_text() {
    let mut missing = vec![];
    without_help(&Cli::command(), "", &mut missing);
    assert!(missing.is_empty(), "no help for: {missing:#?}");
}

fn without_help(command: &clap::Command, prefix: &str, missing: &mut Vec<String>) {
    let name = format!("{prefix} {}", command.get_name());
    if command.get_about().is_none() {
        missing.push(name.clone());
    }
    for argument in command.get_arguments().filter(|argument| argument.get_help().is_none()) {
        missing.push(format!("{name} {}", argument.get_id()));
    }
    command.get_subcommands().for_each(|subcommand| without_help(subcommand, &name, missing));
}

#[test]
fn global_options_may_stand_anywhere() {
    for line in ["tenure -o json dag list", "tenure dag -o json list", "tenure dag list -o json"] {
        let cli = Cli::try_parse_from(line.split(' ')).unwrap();
        assert_eq!(cli.globals.output, OutputFormat::Json, "{line}");
    }
}

#[test]
fn wrong_usage_is_refused_with_exit_code_2() {
    for line in [
        "tenure dag",
        "tenure dag push",
        "tenure run trigger orders --timeout 10m",
        "tenure run trigger orders --wait --timeout ten",
        "tenure run trigger orders --param region",
        "tenure run trigger orders --logical-date yesterday",
        "tenure run mark orders latest skipped",
        "tenure run list --state finished",
        "tenure task logs orders latest extract --try 0",
        "tenure dag list --paused --active",
        "tenure lease show a//b",
        "tenure lease acquire a --timeout 1s",
        "tenure lease renew a --epoch 1",
        "tenure lease release a --term x --epoch 1",
        "tenure member",
    ] {
        let error = Cli::try_parse_from(line.split(' ')).expect_err(line);
        assert_eq!(error.exit_code(), 2, "{line}");
    }
}

#[test]
fn a_misspelt_dag_gets_the_names_that_come_close() {
    let known = ["orders", "orders_daily", "billing"].map(str::to_owned);
    assert_eq!(hint("oders", &known), "\n  did you mean orders?");
    assert_eq!(hint("orders_dail", &known), "\n  did you mean orders_daily or orders?");
    assert_eq!(hint("xyz", &known), "\n  what there is: tenure dag list");
    assert_eq!(hint("orders", &known), "\n  its runs: tenure run list orders");
}

#[test]
fn completion_knows_the_commands() {
    let mut script = vec![];
    clap_complete::generate(clap_complete::Shell::Bash, &mut Cli::command(), "tenure", &mut script);
    let script = String::from_utf8(script).unwrap();
    assert!(script.contains("trigger") && script.contains("--idempotency-key"));
}

#[test]
fn a_server_that_is_not_there_is_exit_code_3() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let failure = outcome("dag list", &format!("http://127.0.0.1:{port}")).unwrap_err();
    assert!(failure.to_string().contains("cannot be reached"), "{failure}");
    assert!(matches!(failure, Failure::Unreachable(_)));
}

#[test]
fn the_exit_code_of_a_waiting_trigger_follows_the_run() {
    let run = r#"{"dag_run_id": "r1"}"#;
    let progress = |revision: u32, state: &str| {
        format!(
            r#"{{"revision": {revision}, "state": "{state}", "started_at": null, "ended_at": null, "tasks":
                [{{"id": "a", "state": "{state}", "try_number": 1, "started_at": null, "ended_at": null}}]}}"#
        )
    };
    let check = |last: &str| {
        let server = FakeServer::answering([
            (200, run.into()),
            (200, progress(1, "running")),
            (200, progress(2, last)),
        ]);
        let outcome = outcome("run trigger orders --wait -o json", &server.url);
        (outcome, server.requests())
    };
    let (succeeded, requests) = check("success");
    assert!(succeeded.is_ok());
    expect_test::expect![[r#"
        POST /api/v2/dags/orders/dagRuns {"logical_date":null,"conf":{}}
        GET /api/tenure/dags/orders/runs/r1/progress
        GET /api/tenure/dags/orders/runs/r1/progress?after_revision=1&wait=20s"#]]
    .assert_eq(&requests.join("\n"));
    assert!(matches!(check("failed").0, Err(Failure::Told(failure::FAILED))));
}

#[test]
fn a_wait_outlives_a_server_that_is_away_for_a_moment() {
    let done = r#"{"revision": 2, "state": "success", "started_at": null, "ended_at": null, "tasks": []}"#;
    let server = FakeServer::answering([
        (200, r#"{"dag_run_id": "r1"}"#.into()),
        (503, r#"{"detail": "The database is unavailable"}"#.into()),
        (200, done.into()),
    ]);
    assert!(outcome("run trigger orders --wait", &server.url).is_ok());
}

#[test]
fn latest_is_the_run_created_last() {
    let server = FakeServer::answering([
        (200, r#"{"dag_runs": [{"dag_run_id": "r9"}], "total_entries": 9}"#.into()),
        (200, r#"{"dag_run_id": "r9", "state": "running"}"#.into()),
        (200, r#"{"dag_run_id": "r9", "state": "failed"}"#.into()),
    ]);
    outcome("run cancel orders latest", &server.url).unwrap();
    expect_test::expect![[r#"
        GET /api/v2/dags/orders/dagRuns?order_by=-id&limit=1&offset=0
        GET /api/v2/dags/orders/dagRuns/r9
        PATCH /api/v2/dags/orders/dagRuns/r9 {"state":"failed"}"#]]
    .assert_eq(&server.requests().join("\n"));
}

const TERM: &str = "00000000-0000-0000-0000-000000000001";

fn held_by(holder: &str, remaining_ms: u64) -> String {
    format!(
        r#"{{"detail": "held", "held_by": {{"scope": "a/b", "holder": "{holder}", "epoch": 7, "term": "{TERM}",
            "remaining_ms": {remaining_ms}}}}}"#
    )
}

#[test]
fn a_lease_that_somebody_else_holds_is_exit_code_73_and_says_who_has_it() {
    let server = FakeServer::answering([(409, held_by("host:1", 4_200))]);
    let lost = outcome("lease acquire a/b --holder me --note blue", &server.url).unwrap_err();
    assert_eq!(lost.to_string(), "a/b is held by host:1 at e7, for another 4.2s unless it is renewed");
    assert_eq!(lost.exit_code(), ExitCode::from(73));
    let asked: Value =
        serde_json::from_str(server.requests()[0].split_once(' ').unwrap().1.split_once(' ').unwrap().1)
            .unwrap();
    assert_eq!(
        (&asked["scope"], &asked["duration_ms"], &asked["note"]),
        (&"a/b".into(), &15_000.into(), &"blue".into())
    );
    assert_eq!(asked["holder"]["name"], "me");
}

#[test]
fn a_wait_for_a_lease_asks_again_under_the_same_term_until_it_is_granted() {
    let server = FakeServer::answering([
        (409, held_by("host:1", 5)),
        (504, r#"{"detail": "lost", "ambiguous": true}"#.into()),
        (
            200,
            format!(
                r#"{{"lease": {{"scope": "a/b", "epoch": 8, "term": "{TERM}"}}, "valid_for_ms": 15000}}"#
            ),
        ),
    ]);
    outcome("lease acquire a/b --wait", &server.url).unwrap();
    let requests = server.requests();
    assert!(requests.len() == 3 && requests.iter().all(|request| *request == requests[0]), "{requests:#?}");
}

#[test]
fn a_renewal_keeps_the_duration_and_a_loss_is_exit_code_73() {
    let line = format!("lease renew a/b --term {TERM} --epoch e7");
    let server = FakeServer::answering([
        (200, r#"{"duration_ms": 9000}"#.into()),
        (200, r#"{"outcomes": [{"scope": "a/b", "renewed": true}]}"#.into()),
    ]);
    outcome(&line, &server.url).unwrap();
    expect_test::expect![[r#"
        GET /api/leases/record?scope=a%2Fb
        POST /api/leases/renew {"claims":[{"scope":"a/b","term":"00000000-0000-0000-0000-000000000001","epoch":7,"duration_ms":9000}]}"#]]
    .assert_eq(&server.requests().join("\n"));
    let lost = r#"{"outcomes": [{"scope": "a/b", "renewed": false,
        "lost": {"reason": "superseded", "detail": "host:2 holds it now, at e8"}}]}"#;
    let server = FakeServer::answering([(200, r#"{"duration_ms": 9000}"#.into()), (200, lost.into())]);
    let lost = outcome(&line, &server.url).unwrap_err();
    assert_eq!(lost.to_string(), "a/b is lost at e7: host:2 holds it now, at e8");
    assert_eq!(lost.exit_code(), ExitCode::from(73));
}

#[test]
fn a_release_that_changes_nothing_is_exit_code_73() {
    let line = format!("lease release a/b --term {TERM} --epoch 7");
    let answers = [(200, r#"{"released": true}"#.into()), (200, r#"{"released": false}"#.into())];
    let server = FakeServer::answering(answers);
    outcome(&line, &server.url).unwrap();
    assert_eq!(outcome(&line, &server.url).unwrap_err().exit_code(), ExitCode::from(73));
}

#[test]
fn members_are_listed_of_one_component_or_of_all() {
    let members = || (200, r#"{"members": [], "total_entries": 0}"#.to_owned());
    let server = FakeServer::answering([members(), members()]);
    outcome("member list", &server.url).unwrap();
    outcome("member list reports", &server.url).unwrap();
    assert_eq!(server.requests(), ["GET /api/leases/members", "GET /api/leases/members?component=reports"]);
}

#[test]
fn a_list_is_read_page_after_page() {
    let page = |ids: [u32; 2]| {
        format!(r#"{{"pools": [{{"name": "{}"}}, {{"name": "{}"}}], "total_entries": 4}}"#, ids[0], ids[1])
    };
    let server = FakeServer::answering([(200, page([1, 2])), (200, page([3, 4]))]);
    let pools = client(&server.url).list(&Path::new("/api/v2/pools"), "pools", usize::MAX).unwrap();
    assert_eq!(pools.len(), 4);
    assert_eq!(server.requests().len(), 2);
}

#[test]
fn the_token_is_sent_and_its_refusal_explained() {
    let server = FakeServer::answering([(401, r#"{"detail": "Invalid token"}"#.into())]);
    let failure = outcome("dag list", &server.url).unwrap_err();
    assert_eq!(failure.exit_code(), ExitCode::from(1));
    assert!(failure.to_string().contains("does not accept the token"), "{failure}");
    assert_eq!(server.seen.lock().unwrap()[0].token.as_deref(), Some("Bearer secret"));
}

#[test]
fn deleting_without_a_terminal_needs_a_yes() {
    let server = FakeServer::answering([(200, "{}".into()), (200, "{}".into()), (204, String::new())]);
    let refused = outcome("dag delete orders", &server.url).unwrap_err();
    assert!(matches!(refused, Failure::Usage(_)), "{refused}");
    outcome("dag delete orders --yes", &server.url).unwrap();
    let asked = ["GET /api/v2/dags/orders", "GET /api/v2/dags/orders", "DELETE /api/v2/dags/orders"];
    assert_eq!(server.requests(), asked);
}

#[test]
fn a_log_is_followed_through_the_retries_to_the_end_of_the_task() {
    let task = |state: &str, number: u32| (200, format!(r#"{{"state": "{state}", "try_number": {number}}}"#));
    let server = FakeServer::answering([
        task("running", 1),
        piece("a", Some("c1")),
        piece("", Some("c1")),
        task("up_for_retry", 1),
        piece("b\n", None),
        task("success", 2),
        task("success", 2),
        piece("c\n", Some("c2")),
        piece("", Some("c2")),
        task("success", 2),
        piece("", None),
    ]);
    outcome("task logs orders r1 extract -f", &server.url).unwrap();
    let path = "GET /api/v2/dags/orders/dagRuns/r1/taskInstances/extract";
    let asked =
        server.requests().iter().map(|request| request.replace(path, "")).collect::<Vec<_>>().join("\n");
    expect_test::expect![[r#"

        /logs/1?token=start
        /logs/1?token=c1

        /logs/1?token=c1


        /logs/2?token=start
        /logs/2?token=c2

        /logs/2?token=c2"#]]
    .assert_eq(&asked);
}

#[test]
fn following_a_task_that_was_never_tried_ends_with_the_task() {
    let server = FakeServer::answering([(200, r#"{"state": "upstream_failed", "try_number": 0}"#.into())]);
    outcome("task logs orders r1 load -f", &server.url).unwrap();
    assert_eq!(server.requests().len(), 1);
}

fn client(url: &str) -> Client {
    Client::connect(&globals("dag list", url).1).unwrap()
}

fn globals(line: &str, url: &str) -> (Command, Globals) {
    let arguments = ["tenure", "--server", url, "--token", "secret"].into_iter().chain(line.split(' '));
    let cli = Cli::try_parse_from(arguments).unwrap();
    (cli.command, cli.globals)
}

fn outcome(line: &str, url: &str) -> Result<(), Failure> {
    let (command, globals) = globals(line, url);
    dispatch(command, &Context { interactive: false, ..Context::new(globals) })
}

/// Gives its answers one after the other, whatever is asked, and remembers the questions.
struct FakeServer {
    url: String,
    seen: Arc<Mutex<Vec<Seen>>>,
}

/// Between additional headers and the body of a canned answer.
const HEADER_END: &str = "\0";

/// A piece of a log, and where the next one begins.
fn piece(text: &str, next: Option<&str>) -> (u16, String) {
    let header = next.map(|next| format!("X-Continuation-Token: {next}\r\n")).unwrap_or_default();
    (200, format!("{header}{HEADER_END}{text}"))
}

struct Seen {
    request: String,
    token: Option<String>,
}

impl FakeServer {
    fn answering(answers: impl IntoIterator<Item = (u16, String)>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let seen = Arc::<Mutex<Vec<Seen>>>::default();
        let mut answers: VecDeque<_> = answers.into_iter().collect();
        let remembered = seen.clone();
        std::thread::spawn(move || {
            while let Some((status, body)) = answers.pop_front() {
                let (mut stream, _) = listener.accept().unwrap();
                remembered.lock().unwrap().push(read_request(&mut BufReader::new(&stream)));
                let (headers, body) = body.split_once(HEADER_END).unwrap_or(("", &body));
                let length = body.len();
                write!(
                    stream,
                    "HTTP/1.1 {status} x\r\n{headers}Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
                )
                .unwrap();
            }
        });
        Self { url, seen }
    }

    fn requests(&self) -> Vec<String> {
        self.seen.lock().unwrap().iter().map(|seen| seen.request.clone()).collect()
    }
}

fn read_request(stream: &mut impl BufRead) -> Seen {
    let mut lines = vec![];
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).unwrap();
        match line.trim_end() {
            "" => break,
            line => lines.push(line.to_owned()),
        }
    }
    let header = |name: &str| {
        let of_name = |line: &&String| line.to_lowercase().starts_with(&format!("{name}:"));
        lines.iter().find(of_name).map(|line| line[name.len() + 1..].trim().to_owned())
    };
    let length = header("content-length").map_or(0, |length| length.parse().unwrap());
    let mut body = vec![0; length];
    stream.read_exact(&mut body).unwrap();
    let start = lines[0].trim_end_matches(" HTTP/1.1");
    let request = format!("{start} {}", String::from_utf8(body).unwrap()).trim_end().to_owned();
    Seen { request, token: header("authorization") }
}
