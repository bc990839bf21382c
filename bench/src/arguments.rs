//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use crate::contender::{CONTENDERS, Contender};
use crate::loads::{LOADS, Load};
use crate::outage::{OUTAGES, Outage, Phases};
use crate::start;

const HELP: &str = "\
bench/run [LOAD…] [OPTION…]

Measures Kennel beside twemproxy and bare memcached. A LOAD is the beginning of a load's name; without one, all are run
but ten-million, a-server-dies and a-server-hangs: some 17 minutes, with --quick 3. ten-million takes some 5 alone, each
of the others 2.

  --quick          one short round each: whether it works, not how fast it is; ten-million becomes one million
  --rounds N       rounds of each load (5)
  --seconds S      seconds of a round, beside a fifth more that does not count (0.8)
  --only NAME,…    these contenders alone: direct, twemproxy, raw, guarded, 1-tag, 1-tag-cached,
                   3-tags, near
  --pin            every proxy on one core, and all else on the others, so that a proxy waits for no core; with
                   one worker. Without it the kernel places all, as it does in production
  --workers N      Kennel's threads (1, as many as twemproxy has)
  --kennel FILE    this binary, instead of rebuilding one
  --plot FILE      the plot of a-server-dies or a-server-hangs, as SVG
  --list           say which loads there are
";

/// Validated arguments.
#[derive(Debug)]
pub(crate) struct Arguments {
    pub(crate) loads: Vec<Load>,
    /// Whether start times are measured too.
    pub(crate) start: bool,
    pub(crate) outages: Vec<Outage>,
    /// The phases of each of `outages`.
    pub(crate) phases: Phases,
    /// Where the plot of the only one of `outages` is written.
    pub(crate) plot: Option<PathBuf>,
    pub(crate) contenders: Vec<Contender>,
    pub(crate) rounds: usize,
    /// The duration of a round.
    pub(crate) seconds: Duration,
    /// Whether proxies have the first core for themselves.
    pub(crate) pin: bool,
    pub(crate) workers: usize,
    pub(crate) kennel: PathBuf,
}

impl Arguments {
    /// `None`: `--help` or `--list` was printed.
    pub(crate) fn read(mut words: impl Iterator<Item = String>) -> Result<Option<Arguments>, String> {
        let (mut loads, mut kennel, mut quick, mut named) = (Vec::new(), None, false, false);
        let mut arguments = Arguments {
            loads: Vec::new(),
            start: false,
            outages: Vec::new(),
            phases: Phases::FULL,
            plot: None,
            contenders: CONTENDERS.to_vec(),
            rounds: 5,
            seconds: Duration::from_millis(800),
            pin: false,
            workers: 1,
            kennel: PathBuf::new(),
        };
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(format!("{word} wants a value"));
            match word.as_str() {
                "--help" | "-h" => {
                    print!("{HELP}");
                    return Ok(None);
                }
                "--list" => {
                    LOADS.iter().for_each(|load| println!("{:16} {}", load.name, load.about));
                    println!("{:16} {}", start::NAME, start::ABOUT);
                    OUTAGES.iter().for_each(|outage| println!("{:16} {}", outage.name, outage.about));
                    return Ok(None);
                }
                "--quick" => {
                    (quick, arguments.phases) = (true, Phases::QUICK);
                    (arguments.rounds, arguments.seconds) = (1, Duration::from_millis(250));
                }
                "--rounds" => arguments.rounds = number(&word, &value()?, 1.0, 1000.0)? as usize,
                "--seconds" => {
                    arguments.seconds = Duration::from_secs_f64(number(&word, &value()?, 0.05, 3600.0)?)
                }
                "--pin" => arguments.pin = true,
                "--workers" => arguments.workers = number(&word, &value()?, 1.0, 64.0)? as usize,
                "--kennel" => kennel = Some(PathBuf::from(value()?)),
                "--plot" => arguments.plot = Some(PathBuf::from(value()?)),
                "--only" => arguments.contenders = contenders(&value()?)?,
                option if option.starts_with('-') => {
                    return Err(format!("there is no option {option}\n\n{HELP}"));
                }
                name => {
                    let before = loads.len() + arguments.outages.len();
                    loads.extend(LOADS.iter().filter(|load| load.name.starts_with(name)).copied());
                    let outages = OUTAGES.iter().filter(|outage| outage.name.starts_with(name));
                    arguments.outages.extend(outages.copied());
                    let start = start::NAME.starts_with(name);
                    if loads.len() + arguments.outages.len() == before && !start {
                        return Err(format!("there is no load {name}; --list prints the loads"));
                    }
                    (named, arguments.start) = (true, arguments.start || start);
                }
            }
        }
        if !named {
            loads.extend(LOADS.iter().filter(|load| load.replies.is_none()).copied());
            arguments.start = true;
        }
        for replies in loads.iter_mut().filter_map(|load| load.replies.as_mut()).filter(|_| quick) {
            *replies /= 10;
        }
        if arguments.pin && arguments.workers > 1 {
            return Err("--pin is for one worker: several would share its core".into());
        }
        if arguments.contenders == [Contender::Direct] && loads.iter().any(|load| load.replies.is_some()) {
            return Err("ten-million is a load of proxies: --only names none".into());
        }
        if arguments.plot.is_some() && arguments.outages.len() != 1 {
            return Err("--plot is for one load: a-server-dies or a-server-hangs".into());
        }
        arguments.loads = loads;
        arguments.kennel = kennel.ok_or("--kennel FILE is required; bench/run builds the program")?;
        Ok(Some(arguments))
    }
}

fn number(option: &str, text: &str, least: f64, most: f64) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| (least..=most).contains(number));
    number.ok_or(format!("{option} is {text}: must be a number from {least} to {most}"))
}

/// In the order of the tables, independent of the order of `names`.
fn contenders(names: &str) -> Result<Vec<Contender>, String> {
    const NAMES: [&str; 8] =
        ["direct", "twemproxy", "raw", "guarded", "1-tag", "1-tag-cached", "3-tags", "near"];
    if let Some(unknown) = names.split(',').find(|name| !NAMES.contains(name)) {
        return Err(format!("--only: there is no {unknown}; there are {}", NAMES.join(", ")));
    }
    let wanted = |(name, _): &(&str, Contender)| names.split(',').any(|wanted| wanted == *name);
    Ok(NAMES.into_iter().zip(CONTENDERS).filter(wanted).map(|(_, contender)| contender).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(words: &str) -> Result<Arguments, String> {
        let words = format!("--kennel k {words}");
        Ok(Arguments::read(words.split_whitespace().map(str::to_owned))?.unwrap())
    }

    #[test]
    fn loads_are_named_by_their_beginnings_and_all_but_ten_million_are_run_without_a_name() {
        let names = |words| read(words).unwrap().loads.iter().map(|load| load.name).collect::<Vec<_>>();
        let all = LOADS.iter().map(|load| load.name).filter(|name| *name != "ten-million");
        assert_eq!(names(""), all.collect::<Vec<_>>());
        assert_eq!(names("start"), [""; 0]);
        let start = |words| read(words).unwrap().start;
        assert_eq!(["", "start", "s", "get"].map(start), [true, true, true, false]);
        assert_eq!(names("rules- latency"), ["rules-100", "rules-1000", "latency"]);
        assert!(read("nothing").unwrap_err().contains("no load nothing"));
    }

    #[test]
    fn a_server_fails_only_when_named_and_one_such_load_has_a_plot() {
        let names = |words| read(words).unwrap().outages.iter().map(|outage| outage.name).collect::<Vec<_>>();
        assert_eq!(names(""), [""; 0]);
        assert_eq!(names("a-server-h"), ["a-server-hangs"]);
        assert!(read("a-server-dies").unwrap().loads.is_empty());
        let plot = read("a-server-dies --plot x.svg").unwrap().plot;
        assert_eq!(plot, Some(PathBuf::from("x.svg")));
        assert!(read("a-server --plot x.svg").is_err() && read("get --plot x.svg").is_err());
    }

    #[test]
    fn quick_makes_one_million_of_ten_in_any_position() {
        let replies = |words| read(words).unwrap().loads[0].replies;
        assert_eq!(replies("ten"), Some(10_000_000));
        assert_eq!(replies("ten --quick"), Some(1_000_000));
        assert_eq!(replies("--quick ten"), Some(1_000_000));
    }

    #[test]
    fn options_are_checked() {
        let arguments = read("--rounds 3 --seconds 0.5 --only near,3-tags,direct").unwrap();
        assert_eq!((arguments.rounds, arguments.seconds), (3, Duration::from_millis(500)));
        assert_eq!(
            arguments.contenders,
            [Contender::Direct, Contender::KennelGuarded(3), Contender::KennelNear]
        );
        let arguments = read("--only 1-tag-cached,1-tag").unwrap();
        assert_eq!(arguments.contenders, [Contender::KennelGuarded(1), Contender::KennelCached]);
        for wrong in [
            "--rounds 0",
            "--rounds",
            "--seconds x",
            "--only nobody",
            "--fast",
            "ten --only direct",
            "--pin --workers 2",
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        assert!(Arguments::read([].into_iter()).unwrap_err().contains("--kennel"));
    }
}
