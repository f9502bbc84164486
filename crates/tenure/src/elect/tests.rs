//! Goal: what a user writes is understood, or refused with what to write instead.

use clap::Parser;

use super::*;
use crate::cli::{Cli, Command};

fn parse(line: &str) -> Result<ElectArgs, String> {
    match Cli::try_parse_from(line.split(' ')).map_err(|error| error.to_string())?.command {
        Command::Elect(args) => Ok(args),
        other => panic!("{other:?}"),
    }
}

#[test]
fn everything_after_the_dashes_is_the_programs_own() {
    let args = parse("tenure elect reports/leader --lease-duration 5s -- sh -c --help -o json").unwrap();
    assert_eq!(args.command, ["sh", "-c", "--help", "-o", "json"]);
    assert_eq!((args.scope.as_str(), args.lease_duration), ("reports/leader", Duration::from_secs(5)));
    assert_eq!((args.on_loss, args.fast_failover, args.kill_after), (OnLoss::Exit, false, Duration::ZERO));
}

#[test]
fn wrong_usage_says_what_is_wrong() {
    let check = |line: &str, hint: &str| {
        let said = parse(line).expect_err(line);
        assert!(said.contains(hint), "{line}: {said}");
    };
    check("tenure elect a", "COMMAND");
    check("tenure elect a true", "--");
    check("tenure elect a//b -- true", "empty part");
    check("tenure elect a!b -- true", "letters, digits");
    check("tenure elect a --backend redis://x -- true", "sqlite:FILE");
    check("tenure elect a --name a/b -- true", "no /");
    check("tenure elect a --name a=b -- true", "the name");
    check("tenure elect a --lease-duration 15 -- true", "30s");
    check("tenure elect a --on-loss panic -- true", "retry");
}

#[test]
fn a_warning_that_would_come_too_early_is_refused_with_the_arithmetic() {
    let config_of = |line: &str| config(&parse(line).unwrap(), &Entropy::seeded(1));
    assert!(config_of("tenure elect a --kill-after 3500ms -- true").is_ok());
    let refused = config_of("tenure elect a --kill-after 4s -- true").unwrap_err();
    expect_test::expect!["--kill-after 4s is too long for a lease of 15s: a renewal may take until two thirds of it have passed, the program must be gone 1s500ms before its end, and that leaves 3s500ms"]
        .assert_eq(&refused.to_string());
}

#[test]
fn a_program_is_looked_up_as_a_shell_does() {
    assert!(find_program(&"sh".into()).unwrap().is_absolute());
    assert_eq!(find_program(&"/bin/sh".into()).unwrap(), Path::new("/bin/sh"));
    let code = |name: &str| find_program(&name.into()).unwrap_err().exit_code();
    assert_eq!(code("no-such-program"), ExitCode::from(NOT_FOUND));
    assert_eq!(code("./no-such-program"), ExitCode::from(NOT_FOUND));
    assert_eq!(code(""), ExitCode::from(NOT_FOUND));
    assert_eq!(code("/etc/passwd"), ExitCode::from(CANNOT_EXECUTE));
    assert_eq!(code("/etc"), ExitCode::from(CANNOT_EXECUTE));
}
