//! Finds example programs, for the tests that run them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;
use std::{env, fs, io};

/// Returns the program of an example of the package `package`, in which the calling test is.
///
/// `cargo test` has built it beside the test. It is built here only where it is missing or older than one of
/// its sources, as after `cargo test --test NAME`: an example built for one package alone has other features
/// than one built for the whole workspace, and cargo would compile much of it again.
///
/// # Panics
/// If it cannot be built.
pub fn example(package: &str, name: &str) -> PathBuf {
    let program = place(&env::current_exe().unwrap_or_default(), name);
    if !is_current(&program).unwrap_or(false) {
        let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut build = Command::new(cargo);
        build.args(["build", "-q", "-p", package, "--example", name, "--profile", profile(&program)]);
        let built = build.status().is_ok_and(|status| status.success());
        assert!(built, "the example {name} cannot be built; try {build:?}");
        assert!(program.exists(), "{build:?} did not make {}", program.display());
    }
    program
}

/// Where cargo puts an example: in `examples`, next to the tests' `deps`.
fn place(test: &Path, name: &str) -> PathBuf {
    let built = test.ancestors().nth(2).unwrap_or(Path::new(""));
    built.join("examples").join(name)
}

/// The profile whose folder a program in `examples` is in.
fn profile(program: &Path) -> &str {
    let folder = program.ancestors().nth(2).and_then(|folder| folder.file_name()?.to_str());
    match folder {
        Some("debug") | None => "dev",
        Some(profile) => profile,
    }
}

/// Whether a program is at least as new as all sources that cargo wrote down beside it.
fn is_current(program: &Path) -> io::Result<bool> {
    let built = modified(program)?;
    let rule = fs::read_to_string(program.with_extension("d"))?;
    let mut newest = SystemTime::UNIX_EPOCH;
    for source in sources(&rule) {
        newest = newest.max(modified(&source)?);
    }
    Ok(newest <= built && newest != SystemTime::UNIX_EPOCH)
}

fn modified(path: &Path) -> io::Result<SystemTime> {
    fs::metadata(path)?.modified()
}

/// The sources in a rule of make's, `program: source source`, where a backslash keeps a blank in a path.
fn sources(rule: &str) -> Vec<PathBuf> {
    let listed = rule.lines().next().and_then(|line| line.split_once(": ")).map_or("", |(_, listed)| listed);
    let marked = listed.replace("\\ ", "\0");
    marked.split_whitespace().map(|path| path.replace('\0', " ").into()).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_example_is_looked_for_beside_the_test_in_its_profile() {
        let program = place(Path::new("/target/debug/deps/face-12ab"), "echo");
        assert_eq!((program.as_path(), profile(&program)), (Path::new("/target/debug/examples/echo"), "dev"));
        let program = place(Path::new("/target/release/deps/face-12ab"), "echo");
        assert_eq!(profile(&program), "release");
    }

    #[test]
    fn paths_with_blanks_are_read() {
        let rule = "/a/echo: /a\\ b/echo.rs /c.rs\n\n/other: /d.rs\n";
        assert_eq!(sources(rule), [Path::new("/a b/echo.rs"), Path::new("/c.rs")]);
        assert!(sources("").is_empty());
    }

    #[test]
    fn an_example_is_current_until_a_source_is_newer_or_gone() -> io::Result<()> {
        let folder = tempfile::tempdir()?;
        let [program, source, rule] = ["echo", "echo.rs", "echo.d"].map(|name| folder.path().join(name));
        assert!(is_current(&program).is_err(), "there is none");
        fs::write(&source, "")?;
        fs::write(&program, "")?;
        assert!(is_current(&program).is_err(), "nobody knows what it was made of");
        fs::write(&rule, format!("{}: {}\n", program.display(), source.display()))?;
        let at = |path: &Path, seconds| {
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
            fs::File::options().write(true).open(path)?.set_modified(time)
        };
        at(&source, 1000)?;
        at(&program, 1000)?;
        assert!(is_current(&program)?);
        at(&source, 1001)?;
        assert!(!is_current(&program)?);
        fs::remove_file(&source)?;
        assert!(is_current(&program).is_err());
        fs::write(&rule, "")?;
        assert!(!is_current(&program)?, "a rule without sources says nothing");
        Ok(())
    }
}
