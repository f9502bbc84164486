//! The files beside a dag file that its tasks name, and who may read them.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Read;
use std::path::{Component, Path, PathBuf};

use tenure_model::EmbeddedFile;

/// What all files of one dag may weigh together.
pub const MOST_EMBEDDED: usize = 1 << 20;

/// Where `python: transform.py` and `exec: [./load]` are read from.
pub trait FileSource {
    fn read(&self, path: &str) -> Result<EmbeddedFile, FileError>;
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FileError {
    #[error("there is no such file beside the dag file")]
    NotFound,
    #[error("it leads out of the folder of the dag file")]
    Outside,
    #[error("it is not a file")]
    NotAFile,
    #[error("the files of a dag may have at most 1 MiB together")]
    TooLarge,
    #[error("it is not UTF-8 text")]
    NotText,
    #[error(
        "it was not sent along with the dag; push with \"tenure dag push\", which does, or write the code inline"
    )]
    NotSent,
    #[error("it cannot be read: {0}")]
    Io(String),
}

/// What was sent along with a dag file that has no folder around it, by its name in the run.
#[derive(Clone, Debug, Default)]
pub struct Attached(pub BTreeMap<String, EmbeddedFile>);

impl FileSource for Attached {
    fn read(&self, path: &str) -> Result<EmbeddedFile, FileError> {
        self.0.get(&name_in_run(path)).cloned().ok_or(FileError::NotSent)
    }
}

/// A folder on disk. Nothing outside of it is read, whatever `..`, absolute paths and links say.
#[derive(Clone, Debug)]
pub struct Folder {
    root: PathBuf,
}

impl Folder {
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The folder that a dag file lies in.
    pub fn of(dag_file: &Path) -> Self {
        match dag_file.parent() {
            Some(parent) if parent != Path::new("") => Self::new(parent),
            _ => Self::new("."),
        }
    }

    fn resolve(&self, path: &str) -> Result<PathBuf, FileError> {
        let inside =
            Path::new(path).components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
        if !inside {
            return Err(FileError::Outside);
        }
        let root = self.root.canonicalize().map_err(io_error)?;
        let file = root.join(path).canonicalize().map_err(io_error)?;
        if file.starts_with(&root) { Ok(file) } else { Err(FileError::Outside) }
    }
}

impl FileSource for Folder {
    fn read(&self, path: &str) -> Result<EmbeddedFile, FileError> {
        let path = self.resolve(path)?;
        // Asked before opening: opening a pipe would wait for someone to write to it.
        let metadata = path.metadata().map_err(io_error)?;
        if !metadata.is_file() {
            return Err(FileError::NotAFile);
        }
        let mut bytes = vec![];
        let file = std::fs::File::open(&path).map_err(io_error)?;
        file.take(MOST_EMBEDDED as u64 + 1).read_to_end(&mut bytes).map_err(io_error)?;
        if bytes.len() > MOST_EMBEDDED {
            return Err(FileError::TooLarge);
        }
        let content = String::from_utf8(bytes).map_err(|_| FileError::NotText)?;
        Ok(EmbeddedFile { content, executable: is_executable(&metadata) })
    }
}

#[cfg(unix)]
fn is_executable(metadata: &std::fs::Metadata) -> bool {
    use std::os::unix::fs::PermissionsExt;
    metadata.permissions().mode() & 0o111 != 0
}

#[cfg(not(unix))]
fn is_executable(_metadata: &std::fs::Metadata) -> bool {
    true
}

fn io_error(error: std::io::Error) -> FileError {
    match error.kind() {
        std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory => FileError::NotFound,
        _ => FileError::Io(error.to_string()),
    }
}

/// Where a file of the dag is put below the run's folder: `./bin/load` is `bin/load`.
pub fn name_in_run(path: &str) -> String {
    let parts = Path::new(path).components().filter(|part| !matches!(part, Component::CurDir));
    parts.map(|part| part.as_os_str().to_string_lossy()).collect::<Vec<_>>().join("/")
}

impl fmt::Debug for dyn FileSource + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FileSource")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn a_folder_gives_its_files_and_nothing_else() {
        let outside = tempfile::tempdir().unwrap();
        let root = outside.path().join("dags");
        std::fs::create_dir_all(root.join("lib")).unwrap();
        std::fs::write(outside.path().join("secret"), "s").unwrap();
        std::fs::write(root.join("lib/a.py"), "print()").unwrap();
        std::fs::write(root.join("latin1"), [0xe4, 0xf6]).unwrap();
        std::fs::write(root.join("big"), vec![b'x'; MOST_EMBEDDED + 1]).unwrap();
        std::fs::write(root.join("run"), "#!/bin/sh").unwrap();
        std::fs::set_permissions(root.join("run"), PermissionsExt::from_mode(0o755)).unwrap();
        symlink(outside.path().join("secret"), root.join("link")).unwrap();
        symlink("lib/a.py", root.join("near")).unwrap();
        symlink("..", root.join("up")).unwrap();

        let folder = Folder::new(&root);
        let file = |content: &str, executable| Ok(EmbeddedFile { content: content.into(), executable });
        assert_eq!(folder.read("lib/a.py"), file("print()", false));
        assert_eq!(folder.read("./lib/a.py"), file("print()", false));
        assert_eq!(folder.read("near"), file("print()", false));
        assert_eq!(folder.read("run"), file("#!/bin/sh", true));
        for path in ["../secret", "lib/../../secret", "link", "up/secret", "/etc/hostname"] {
            assert_eq!(folder.read(path), Err(FileError::Outside), "{path}");
        }
        assert_eq!(folder.read("absent"), Err(FileError::NotFound));
        assert_eq!(folder.read("lib"), Err(FileError::NotAFile));
        assert_eq!(folder.read("latin1"), Err(FileError::NotText));
        assert_eq!(folder.read("big"), Err(FileError::TooLarge));
    }
}
