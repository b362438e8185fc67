#![allow(clippy::unwrap_used)]

use clap::ArgMatches;

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
