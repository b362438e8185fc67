#![allow(clippy::unwrap_used)]

use clap::ArgMatches;
use clap::error::ErrorKind;

use super::*;

fn parse(text: &str, argv: &str) -> Result<ArgMatches, clap::Error> {
    let command = Cli::command();
    let settings = Settings::parse(text, Path::new("c"), &command).unwrap();
    let argv: Vec<OsString> = argv.split(' ').map(OsString::from).collect();
    settings.matches(&command, &argv)
}

#[test]
fn flags_win_over_the_file() {
    let text = "port = 4000\n[expose]\nname = \"a.b@c\"\nto = \"h:1\"\nallow = [\"any\"]\n";
    let matches = parse(text, "whimbrel expose").unwrap();
    let (_, expose) = matches.subcommand().unwrap();
    assert_eq!(expose.get_one::<u16>("port"), Some(&4000));
    assert_eq!(expose.get_one::<String>("to").unwrap(), "h:1");
    let matches = parse(text, "whimbrel expose x.y@z --to i:2 --port 5").unwrap();
    let (_, expose) = matches.subcommand().unwrap();
    assert_eq!(expose.get_one::<u16>("port"), Some(&5));
    assert_eq!(expose.get_one::<String>("to").unwrap(), "i:2");
    let matches = parse(text, "whimbrel --port 6 expose").unwrap();
    let (_, expose) = matches.subcommand().unwrap();
    assert_eq!(expose.get_one::<u16>("port"), Some(&6));
}

#[test]
fn a_flag_takes_what_excludes_it_out_of_the_file() {
    let text = "[names-serve]\nephemeral = true\n";
    let matches = parse(text, "whimbrel names serve --store x").unwrap();
    let (_, names) = matches.subcommand().unwrap();
    let (_, serve) = names.subcommand().unwrap();
    assert!(!serve.get_flag("ephemeral"));
    let matches = parse(text, "whimbrel names serve").unwrap();
    let (_, names) = matches.subcommand().unwrap();
    assert!(names.subcommand().unwrap().1.get_flag("ephemeral"));
}

#[test]
fn mistakes_are_named_with_their_line() {
    let cases = [
        ("\nprot = 1\n", "config.toml:2: unknown key `prot` in the top of the file"),
        ("[expsoe]\n", "config.toml:1: unknown section [expsoe]"),
        ("[expose]\n\nport = 3\n", "config.toml:3: unknown key `port` in [expose]"),
        ("port = 99999\n", "config.toml:1: "),
        ("names = \"nonsense\"\n", "config.toml:1: "),
        ("port = [1, 2]\n", "config.toml:1: `port` takes one value"),
        ("port = 1.5\n", "config.toml:1: `port` must be"),
        ("port =\n", "config.toml:1: "),
        ("config = \"x\"\n", "config.toml:1: unknown key `config`"),
    ];
    for (text, expected) in cases {
        let error = check_config(text).unwrap_err();
        assert!(error.starts_with(expected) && !error.contains('\n'), "{text:?}: {error}");
    }
    assert_eq!(check_config("quiet = true\n[forward]\nlisten = \"127.0.0.1:1\"\n"), Ok(()));
}

#[test]
fn the_example_configuration_is_valid() {
    let id = whimbrel_base::SecretKey::from_bytes(&[7; 32]).id().to_string();
    let text = commands::help::CONFIG.replace("\"ID", &format!("\"{id}"));
    assert_eq!(check_config(&text), Ok(()));
}

/// The commands of this program in a text: lines that begin with it, in quotes or not.
fn examples(text: &str) -> Vec<String> {
    let lines = text.replace("\\\n", " ");
    let lines = lines.lines().filter_map(|line| {
        let line = line.trim().trim_start_matches("$ ");
        let at = line.find("whimbrel ")?;
        let (before, command) = line.split_at(at);
        // In a text, only what stands alone or behind a label, a pipe or another program's option is one.
        let example =
            before.is_empty() || before.trim_end().ends_with([':', '|', '&']) || before.ends_with('\'');
        let command = if before.ends_with('\'') { command.split('\'').next()? } else { command };
        example.then(|| command.split("  ").next().unwrap_or_default().trim().to_owned())
    });
    lines.collect()
}

#[track_caller]
fn parses(example: &str) {
    let id = whimbrel_base::SecretKey::from_bytes(&[7; 32]).id().to_string();
    let words = example.split(" #").next().unwrap_or_default();
    let words = words.split(['|', '&', ';']).next().unwrap_or_default().split_whitespace();
    let words = words.map(|word| match word.trim_matches('\'') {
        "ID" | "LAPTOP-ID" | "HOME-ID" => id.clone(),
        word => word.replace("=ID", &format!("={id}")),
    });
    let words: Vec<String> = words.collect();
    if let Err(error) = described().try_get_matches_from(words) {
        let help = [ErrorKind::DisplayHelp, ErrorKind::DisplayVersion].contains(&error.kind());
        assert!(help, "{example}: {error}");
    }
}

/// Placeholders that only a person can fill in.
fn is_whole(example: &str) -> bool {
    let placeholders = ["NAME ", "TICKET", "SERVICE", "RELAY"];
    !example.contains(['…', '[', '$']) && !placeholders.iter().any(|word| example.contains(word))
}

#[test]
fn every_example_in_help_texts_is_understood() {
    fn all(command: &Description) -> Vec<String> {
        let own = command.get_after_help().map(|text| examples(&text.to_string())).unwrap_or_default();
        let own = own.into_iter().filter(|example| !example.starts_with("whimbrel help options. Exit"));
        own.chain(command.get_subcommands().flat_map(all)).collect()
    }
    let found = all(&described());
    assert!(found.len() > 30, "{found:?}");
    found.iter().filter(|example| is_whole(example)).for_each(|example| parses(example));
}

#[test]
fn every_example_in_the_topics_of_help_is_understood() {
    // Not cut off where a line goes on, as what explains an example is.
    let found = examples(&commands::help::PUBLISHING.replace("\\\n      ", ""));
    assert_eq!(found.len(), 5, "{found:?}");
    assert!(found.iter().any(|example| example.ends_with("--public-http 0.0.0.0:80")), "{found:?}");
    found.iter().for_each(|example| parses(example));
    // What is commented out there can be used, too.
    let id = whimbrel_base::SecretKey::from_bytes(&[7; 32]).id().to_string();
    let config =
        commands::help::CONFIG.replace("=ID\"", &format!("={id}\"")).replace("\"ID", &format!("\"{id}"));
    let keys = config.lines().filter_map(|line| line.strip_prefix("# ")).filter(|line| line.contains(" = "));
    let keys: Vec<&str> = keys.collect();
    assert_eq!(keys.len(), 5, "{keys:?}");
    assert_eq!(check_config(&keys.join("\n")), Ok(()));
}

#[test]
fn every_example_in_the_readme_is_understood() {
    let text = include_str!("../../../../README.md");
    // Blocks of code are every second part.
    let found: Vec<String> = text.split("```").skip(1).step_by(2).flat_map(examples).collect();
    assert!(found.len() > 3, "{found:?}");
    found.iter().filter(|example| is_whole(example)).for_each(|example| parses(example));
}
