//! How the command line finds the server on its own machine without being told.
//!
//! A running server leaves *pointers*: one in its data folder, one as the user's latest server, and one
//! under its own address. A pointer holds the address, where the token is, and the process id; never
//! the token. Promises: a pointer is written whole or not at all, one that a killed server left behind is
//! passed over, and a server that ends removes its own pointers only. Does not promise that the server
//! answers: that shows when it is asked.

use std::fmt;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The data folder of a server that was not told otherwise.
pub const DEFAULT_DATA_FOLDER: &str = "tenure-data";
/// The admin token's file in the data folder, mode 0600.
pub const TOKEN_FILE: &str = "admin-token";
const POINTER_FILE: &str = "server.json";

/// A server, and what opens its door.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    pub url: String,
    pub token: Option<String>,
    /// Where the token came from, or why there is none. For error messages.
    pub token_origin: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotFound {
    /// Each place that was looked at, and what was wrong there.
    pub looked: Vec<String>,
}

impl fmt::Display for NotFound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "no Tenure server found: {}; start one with \"tenure up\" or name one with --server",
            self.looked.join(", ")
        )
    }
}

impl std::error::Error for NotFound {}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Pointer {
    url: String,
    pid: u32,
    token_file: PathBuf,
}

/// Removes the pointers when the server ends.
#[derive(Debug)]
pub struct Published {
    pointer: Pointer,
    files: Vec<PathBuf>,
}

/// Tells the command lines of this machine's user where the server is. The folders of the user are a
/// convenience, so trouble there is no error; the data folder's own pointer must succeed.
pub fn publish(data_dir: &Path, url: &str, token_file: &Path) -> io::Result<Published> {
    publish_in(&Places::of_this_user(), data_dir, url, token_file)
}

/// The server of this machine that a command without `--server` means.
pub fn find() -> Result<Endpoint, NotFound> {
    find_in(&Places::of_this_user())
}

/// For commands that must not guess: the server of this folder, or the only one there is. Otherwise what to say.
pub fn unambiguous() -> Result<(), String> {
    unambiguous_in(&Places::of_this_user())
}

fn unambiguous_in(places: &Places) -> Result<(), String> {
    if live(&places.data_folder.join(POINTER_FILE)).is_ok() {
        return Ok(());
    }
    let files = places.all_addresses();
    let urls: Vec<String> = files.iter().filter_map(|file| Some(live(file).ok()?.url)).collect();
    match urls.len() {
        0 | 1 => Ok(()),
        _ => Err(format!(
            "several servers run here ({}): say which one keeps the lease, with --backend URL",
            urls.join(", ")
        )),
    }
}

/// A server at a known address. Its token is known here if it runs here.
pub fn at(url: &str) -> Endpoint {
    at_in(&Places::of_this_user(), url)
}

/// Where pointers live.
#[derive(Debug)]
struct Places {
    /// `./tenure-data`: whoever stands in a project's folder means that project's server.
    data_folder: PathBuf,
    /// `$XDG_RUNTIME_DIR/tenure` or `~/.cache/tenure`.
    user_folder: Option<PathBuf>,
}

impl Places {
    fn of_this_user() -> Self {
        let folder =
            |variable: &str| std::env::var_os(variable).filter(|path| !path.is_empty()).map(PathBuf::from);
        let runtime = folder("XDG_RUNTIME_DIR").filter(|path| path.is_dir());
        let cache = || folder("HOME").map(|home| home.join(".cache"));
        Self {
            data_folder: PathBuf::from(DEFAULT_DATA_FOLDER),
            user_folder: runtime.or_else(cache).map(|folder| folder.join("tenure")),
        }
    }

    fn latest(&self) -> Option<PathBuf> {
        self.user_folder.as_ref().map(|folder| folder.join(POINTER_FILE))
    }

    /// One file for each server of this user, named after its address.
    fn by_address(&self, url: &str) -> Option<PathBuf> {
        let name: String =
            url.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '_' }).collect();
        Some(self.user_folder.as_ref()?.join("servers").join(format!("{name}.json")))
    }

    fn all_addresses(&self) -> Vec<PathBuf> {
        let folder = self.user_folder.as_ref().map(|folder| folder.join("servers"));
        let entries = folder.and_then(|folder| std::fs::read_dir(folder).ok()).into_iter().flatten();
        let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        files.retain(|file| file.extension().is_some_and(|extension| extension == "json"));
        files.sort();
        files
    }
}

fn publish_in(places: &Places, data_dir: &Path, url: &str, token_file: &Path) -> io::Result<Published> {
    let url = trimmed(url).to_owned();
    let token_file = std::path::absolute(token_file)?;
    let data_dir = std::path::absolute(data_dir)?;
    let pointer = Pointer { url, pid: std::process::id(), token_file };
    let own = data_dir.join(POINTER_FILE);
    write_whole(&own, &pointer)?;
    let mut published = Published { files: vec![own], pointer };
    for file in [places.latest(), places.by_address(&published.pointer.url)].into_iter().flatten() {
        match write_whole(&file, &published.pointer) {
            Ok(()) => published.files.push(file),
            Err(error) => {
                tracing::debug!(file = %file.display(), %error, "pointer for the command line not written")
            }
        }
    }
    Ok(published)
}

impl Drop for Published {
    fn drop(&mut self) {
        for file in &self.files {
            // Another server may have become the latest one in the meantime.
            if read(file).is_ok_and(|pointer| pointer == self.pointer) {
                let _ = std::fs::remove_file(file); // left behind, it is passed over: its process is gone
            }
        }
    }
}

fn find_in(places: &Places) -> Result<Endpoint, NotFound> {
    let mut looked = vec![];
    for file in std::iter::once(places.data_folder.join(POINTER_FILE)).chain(places.latest()) {
        match live(&file) {
            Ok(pointer) => return Ok(pointer.endpoint()),
            Err(reason) => looked.push(format!("{} {reason}", shown(&file))),
        }
    }
    // The latest server has ended; if one other is still there, that is the one meant.
    let others: Vec<Pointer> = places.all_addresses().iter().filter_map(|file| live(file).ok()).collect();
    match others.as_slice() {
        [] => Err(NotFound { looked }),
        [only] => Ok(only.endpoint()),
        several => {
            let urls: Vec<&str> = several.iter().map(|pointer| pointer.url.as_str()).collect();
            looked.push(format!("and several servers run here ({})", urls.join(", ")));
            Err(NotFound { looked })
        }
    }
}

fn at_in(places: &Places, url: &str) -> Endpoint {
    let url = trimmed(url);
    let candidates = [Some(places.data_folder.join(POINTER_FILE)), places.by_address(url), places.latest()];
    let known = candidates.into_iter().flatten().filter_map(|file| live(&file).ok());
    match known.into_iter().find(|pointer| pointer.url == url) {
        Some(pointer) => pointer.endpoint(),
        None => Endpoint { url: url.to_owned(), token: None, token_origin: "no token was given".into() },
    }
}

impl Pointer {
    fn endpoint(&self) -> Endpoint {
        let file = self.token_file.display();
        let (token, token_origin) = match std::fs::read_to_string(&self.token_file) {
            Ok(text) => (Some(text.trim().to_owned()), format!("the token is from {file}")),
            Err(error) => (None, format!("the token in {file} cannot be read: {error}")),
        };
        Endpoint { url: self.url.clone(), token, token_origin }
    }
}

/// The pointer, if its server's process exists; otherwise why not.
fn live(file: &Path) -> Result<Pointer, String> {
    let pointer = read(file).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => "is not there".to_owned(),
        _ => format!("cannot be read: {error}"),
    })?;
    match is_alive(pointer.pid) {
        true => Ok(pointer),
        false => Err(format!("names process {}, which has ended", pointer.pid)),
    }
}

fn is_alive(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    // A process of another user exists, though it may not be signalled.
    pid.is_some_and(|pid| {
        matches!(rustix::process::test_kill_process(pid), Ok(()) | Err(rustix::io::Errno::PERM))
    })
}

fn read(file: &Path) -> io::Result<Pointer> {
    serde_json::from_slice(&std::fs::read(file)?).map_err(io::Error::from)
}

/// A reader sees the old file or the new one, never half of one.
fn write_whole(file: &Path, pointer: &Pointer) -> io::Result<()> {
    if let Some(folder) = file.parent() {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    let scratch = file.with_extension(format!("{}.tmp", std::process::id()));
    let mut out =
        std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&scratch)?;
    serde_json::to_writer(&mut out, pointer)?;
    out.write_all(b"\n")?;
    std::fs::rename(&scratch, file)
}

fn trimmed(url: &str) -> &str {
    url.trim().trim_end_matches('/')
}

fn shown(file: &Path) -> String {
    match file.is_relative() {
        true => format!("./{}", file.display()),
        false => file.display().to_string(),
    }
}

#[cfg(test)]
mod tests;
