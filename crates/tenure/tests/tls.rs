//! Goal: with a certificate, everything goes by TLS, and whoever cannot agree to it is told why and what to do.
//! Method: certificates made here, real servers, agents and command lines.

mod common;

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use common::cluster::{Cluster, PATIENCE, Replica, TOKEN};
use common::{text, wait_until};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, date_time_ymd};

/// An authority, and what it has signed, in files.
struct Papers<'a> {
    cluster: &'a Cluster,
    authority: CertifiedIssuer<'static, KeyPair>,
}

impl<'a> Papers<'a> {
    fn new(cluster: &'a Cluster) -> Self {
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        std::fs::write(cluster.path("ca.pem"), authority.pem()).unwrap();
        Self { cluster, authority }
    }

    fn ca(&self) -> String {
        self.cluster.path("ca.pem").display().to_string()
    }

    fn files(&self, name: &str) -> (PathBuf, PathBuf) {
        (self.cluster.path(&format!("{name}.crt")), self.cluster.path(&format!("{name}.key")))
    }

    /// A certificate for these names, as the two settings that name its files.
    fn issue(&self, name: &str, names: &[&str], expired: bool) -> [String; 4] {
        let mut params =
            CertificateParams::new(names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>()).unwrap();
        if expired {
            params.not_before = date_time_ymd(2020, 1, 1);
            params.not_after = date_time_ymd(2020, 2, 1);
        }
        let key = KeyPair::generate().unwrap();
        let made = params.signed_by(&key, &self.authority).unwrap();
        let (certificate_file, key_file) = self.files(name);
        std::fs::write(&key_file, key.serialize_pem()).unwrap();
        std::fs::write(&certificate_file, made.pem()).unwrap();
        let [certificate, key] = [certificate_file, key_file].map(|file| file.display().to_string());
        ["--tls-cert".into(), certificate, "--tls-key".into(), key]
    }

    /// A replica behind a certificate, once it answers.
    fn server(&self, name: &str, tls: &[String]) -> Replica<'a> {
        let tls: Vec<&str> = tls.iter().map(String::as_str).collect();
        let mut command = self.cluster.server_command(name, &tls);
        command.env("TENURE_BOOTSTRAP_TOKEN", TOKEN);
        let mut replica = self.cluster.spawn(name, command);
        replica.wait_address();
        replica
    }
}

fn cli(cluster: &Cluster, url: &str, more: &[&str]) -> Output {
    let mut command = cluster.command();
    command.env("TENURE_SERVER", url).env("TENURE_TOKEN", TOKEN).args(more);
    command.output().unwrap()
}

fn said(output: &Output) -> String {
    format!("{}{}", text(&output.stdout), text(&output.stderr))
}

fn agent(cluster: &Cluster, url: &str, more: &[&str]) -> Command {
    let mut command = cluster.command();
    command.args(["agent", "--server", url, "--token", TOKEN, "--name", "worker", "--data", "worker"]);
    command.args(more);
    command
}

/// An agent that must end by itself.
fn refused(cluster: &Cluster, url: &str, more: &[&str]) -> String {
    let mut child = agent(cluster, url, more).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let ended = wait_until("its end", PATIENCE, || child.try_wait().unwrap());
    if ended.is_none() {
        child.kill().unwrap();
    }
    let output = child.wait_with_output().unwrap();
    assert!(ended.is_some_and(|status| status.code() == Some(1)), "{}", said(&output));
    said(&output)
}

#[test]
fn tasks_run_over_tls_and_only_for_those_who_trust_the_authority() {
    let cluster = Cluster::new();
    let papers = Papers::new(&cluster);
    let tls = papers.issue("server", &["127.0.0.1"], false);
    let replica = papers.server("a", &tls);
    let (url, ca) = (replica.url.clone(), papers.ca());
    assert!(url.starts_with("https://127.0.0.1:"), "{url}");

    let strange = cli(&cluster, &url, &["dag", "list"]);
    assert_eq!(strange.status.code(), Some(3));
    assert!(
        said(&strange).contains("certificate not trusted: give its authority with --ca"),
        "{}",
        said(&strange)
    );
    let strange = refused(&cluster, &url, &[]);
    assert!(strange.contains("certificate not trusted: give its authority with --ca"), "{strange}");

    let log = cluster.path("worker.log");
    let file = std::fs::File::create(&log).unwrap();
    let mut command = agent(&cluster, &url, &["--ca", &ca]);
    let mut child = command.stdout(file.try_clone().unwrap()).stderr(file).spawn().unwrap();
    let dag = cluster.path("hello.yaml");
    std::fs::write(&dag, "id: hello\ntasks:\n  a:\n    bash: echo hello by tls\n").unwrap();
    let ok = |args: &[&str]| {
        let output = cli(&cluster, &url, &[&["--ca", &ca], args].concat());
        assert!(output.status.success(), "{args:?}: {}\n{}", said(&output), replica.log());
        said(&output)
    };
    ok(&["dag", "push", dag.to_str().unwrap(), "--unpaused"]);
    ok(&["run", "trigger", "hello", "--wait", "--timeout", "30s"]);
    let printed = wait_until("its log", PATIENCE, || {
        Some(ok(&["task", "logs", "hello", "latest", "a"])).filter(|log| log.contains("hello by tls"))
    });
    assert!(printed.is_some(), "{}", std::fs::read_to_string(log).unwrap());

    // A renewed certificate is shown to the next client, without a restart.
    let other = Papers::new(&cluster);
    other.issue("server", &["127.0.0.1"], false);
    let renewed = wait_until("the new certificate", PATIENCE, || {
        cli(&cluster, &url, &["--ca", &other.ca(), "dag", "list"]).status.success().then_some(())
    });
    assert!(renewed.is_some(), "{}", replica.log());
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn what_keeps_two_from_coming_together_is_told() {
    let cluster = Cluster::new();
    let papers = Papers::new(&cluster);
    let ca = papers.ca();
    let with_ca = |url: &str| said(&cli(&cluster, url, &["--ca", &ca, "dag", "list"]));

    let right = papers.server("a", &papers.issue("right", &["127.0.0.1"], false));
    let plain_url = right.url.replace("https://", "http://");
    let told = with_ca(&plain_url);
    assert!(told.contains("speaks TLS") && told.contains("https://"), "{told}");
    let told = refused(&cluster, &plain_url, &[]);
    assert!(told.contains("speaks TLS") && told.contains("https://"), "{told}");

    let elsewhere = papers.server("b", &papers.issue("elsewhere", &["tenure.example"], false));
    let told = with_ca(&elsewhere.url);
    assert!(told.contains("not for the host name 127.0.0.1") && told.contains("tenure.example"), "{told}");
    let told = refused(&cluster, &elsewhere.url, &["--ca", &ca]);
    assert!(told.contains("not for the host name 127.0.0.1"), "{told}");

    let old = papers.server("c", &papers.issue("old", &["127.0.0.1"], true));
    let told = with_ca(&old.url);
    assert!(told.contains("expired on 2020-02-01"), "{told}");

    let plain = cluster.server("d", &[]);
    let secure_url = plain.url.replace("http://", "https://");
    let told = with_ca(&secure_url);
    assert!(told.contains("does not speak TLS") && told.contains("http://"), "{told}");
    let told = refused(&cluster, &secure_url, &["--ca", &ca]);
    assert!(told.contains("does not speak TLS"), "{told}");

    let told = with_ca(&right.url);
    assert!(!told.contains("error"), "{told}");
    let missing = said(&cli(&cluster, &right.url, &["--ca", "nowhere.pem", "dag", "list"]));
    assert!(missing.contains("--ca") && missing.contains("nowhere.pem"), "{missing}");
}

#[test]
fn a_server_with_files_that_make_no_sense_says_so_and_so_does_the_check() {
    let cluster = Cluster::new();
    let papers = Papers::new(&cluster);
    let mut tls = papers.issue("one", &["127.0.0.1"], false);
    papers.issue("two", &["127.0.0.1"], false);
    tls[3] = papers.files("two").1.display().to_string();
    let tls: Vec<&str> = tls.iter().map(String::as_str).collect();
    let (code, told) = cluster.refused("a", cluster.server_command("a", &tls));
    assert_eq!(code, Some(1), "{told}");
    assert!(told.contains("two.key") && told.contains("one.crt"), "{told}");
    let mut check = cluster.command();
    check.args(["config", "check", "--database-url", &cluster.database_url]).args(&tls);
    let output = check.output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("two.key"), "{}", said(&output));
}
