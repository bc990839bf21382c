//! The hot keys in a terminal, live.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row as TableRow, Table};
use ratatui::{DefaultTerminal, Frame};
use tokio::time::Instant;

use super::Source;
use super::page::{HotPage, head};
use crate::hot::Measure;

/// How often the sidecar is asked.
const REFRESH: Duration = Duration::from_secs(1);
/// How long a key press is awaited before the screen is looked at again.
const POLL: Duration = Duration::from_millis(50);
/// The most characters of a filter.
const MAX_FILTER: usize = 250;
/// The width of a column of numbers.
const NUMBER: u16 = 10;
/// In a narrower terminal, only the column of numbers is shown by which the keys are sorted; in one that is narrower than the second
/// width, that of spared builds only if the keys are sorted by it.
const WIDE: u16 = 70;
const WIDEST: u16 = 100;

/// What is on the screen.
struct Screen {
    admin: String,
    by: Measure,
    page: HotPage,
    /// Why the last request failed, if it did.
    error: Option<String>,
    /// What keys or rules must contain.
    filter: String,
    is_editing: bool,
    is_paused: bool,
    /// The first row that is shown.
    first: usize,
    is_over: bool,
}

/// The results of requests, each with what it was sorted by.
type Results = (Measure, Result<HotPage, String>);

/// Shows the keys until `q` is pressed.
///
/// # Errors
/// The terminal cannot be used, or the first request fails: a sentence.
pub(super) fn run(source: &Source, by: Measure) -> Result<(), String> {
    let page = HotPage::parse(&source.fetch(by)?)?;
    let mut terminal =
        ratatui::try_init().map_err(|error| format!("the terminal cannot be used: {error}"))?;
    let screen = Screen::new(source.client.address.clone(), by, page);
    let result = live(&mut terminal, source, screen);
    ratatui::restore();
    result.map_err(|error| error.to_string())
}

fn live(terminal: &mut DefaultTerminal, source: &Source, mut screen: Screen) -> std::io::Result<()> {
    let (sender, results) = channel();
    let (mut asked, mut is_asking) = (Instant::now(), false);
    let mut has_changed = true;
    while !screen.is_over {
        if has_changed {
            terminal.draw(|frame| screen.draw(frame))?;
        }
        let before = screen.by;
        has_changed = event::poll(POLL)? && screen.handle(&event::read()?);
        if take(&results, &mut screen) {
            (is_asking, has_changed) = (false, true);
        }
        let is_due = asked.elapsed() >= REFRESH && !screen.is_paused;
        if !is_asking && (is_due || screen.by != before) {
            (asked, is_asking) = (Instant::now(), true);
            ask(source.clone(), screen.by, sender.clone());
        }
    }
    Ok(())
}

/// Asks the sidecar in a thread of its own, so that the screen reacts meanwhile.
fn ask(source: Source, by: Measure, results: Sender<Results>) {
    thread::spawn(move || {
        let page = source.fetch(by).and_then(|text| HotPage::parse(&text));
        // The screen may be closed.
        let _ = results.send((by, page));
    });
}

/// Shows the results that have arrived. Whether there are any.
fn take(results: &Receiver<Results>, screen: &mut Screen) -> bool {
    let mut has_any = false;
    while let Ok((by, result)) = results.try_recv() {
        has_any = true;
        match result {
            Ok(page) if by == screen.by => (screen.page, screen.error) = (page, None),
            Ok(_) => {}
            Err(why) => screen.error = Some(why),
        }
    }
    has_any
}

impl Screen {
    fn new(admin: String, by: Measure, page: HotPage) -> Screen {
        Screen {
            admin,
            by,
            page,
            error: None,
            filter: String::new(),
            is_editing: false,
            is_paused: false,
            first: 0,
            is_over: false,
        }
    }

    /// Whether the screen must be drawn again.
    fn handle(&mut self, event: &Event) -> bool {
        match event {
            Event::Key(key) if key.kind != KeyEventKind::Release => self.press(key),
            Event::Resize(..) => true,
            _ => false,
        }
    }

    fn press(&mut self, key: &KeyEvent) -> bool {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            self.is_over = key.code == KeyCode::Char('c');
            return false;
        }
        match key.code {
            KeyCode::Enter if self.is_editing => self.is_editing = false,
            KeyCode::Esc => (self.is_editing, self.filter, self.first) = (false, String::new(), 0),
            KeyCode::Backspace if self.is_editing => {
                self.filter.pop();
                self.first = 0;
            }
            KeyCode::Char(c) if self.is_editing => {
                if self.filter.len() < MAX_FILTER {
                    self.filter.push(c);
                }
                self.first = 0;
            }
            KeyCode::Char('q') => self.is_over = true,
            KeyCode::Char('/') => self.is_editing = true,
            KeyCode::Char('p' | ' ') => self.is_paused = !self.is_paused,
            KeyCode::Char('r') => self.by = Measure::Requests,
            KeyCode::Char('b') => self.by = Measure::Bytes,
            KeyCode::Char('m') => self.by = Measure::Misses,
            KeyCode::Char('t') => self.by = Measure::Rebuild,
            KeyCode::Char('s') => self.by = Measure::Spared,
            KeyCode::Down | KeyCode::Char('j') => self.first += 1,
            KeyCode::Up | KeyCode::Char('k') => self.first = self.first.saturating_sub(1),
            KeyCode::PageDown => self.first += 10,
            KeyCode::PageUp => self.first = self.first.saturating_sub(10),
            KeyCode::Home => self.first = 0,
            _ => return false,
        }
        true
    }

    fn draw(&mut self, frame: &mut Frame<'_>) {
        let [top, accuracy, table, bottom] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(1),
            Constraint::Min(1),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let title = format!("kennel top  {}  by {}", self.admin, self.by.word());
        let paused = if self.is_paused { "  paused" } else { "" };
        frame.render_widget(Line::from(vec![Span::styled(title, bold), Span::raw(paused)]), top);
        let second = match &self.error {
            Some(why) => Line::styled(why.clone(), bold),
            None => Line::raw(self.page.accuracy(self.by)),
        };
        frame.render_widget(Paragraph::new(second), accuracy);
        self.draw_table(frame, table);
        let help = if self.is_editing {
            format!("filter: {}_  (Enter: keep, Esc: none)", self.filter)
        } else if self.filter.is_empty() {
            "r requests  b bytes  m misses  t rebuild  s spared  / filter  p pause  q quit".to_owned()
        } else {
            format!("filter: {}  (Esc: none)  r b m t s sort  p pause  q quit", self.filter)
        };
        frame.render_widget(Line::styled(help, Style::new().add_modifier(Modifier::REVERSED)), bottom);
    }

    fn draw_table(&mut self, frame: &mut Frame<'_>, area: Rect) {
        let contains = |text: &str| text.contains(&*self.filter);
        let rows: Vec<_> =
            self.page.keys.iter().filter(|row| contains(&row.key) || contains(&row.rule)).collect();
        // The first line is the head of the table.
        let height = usize::from(area.height.saturating_sub(1)).max(1);
        self.first = self.first.min(rows.len().saturating_sub(height));
        let fits = |of: &Measure| match area.width {
            ..WIDE => *of == self.by,
            WIDE..WIDEST => *of != if self.by == Measure::Spared { Measure::Bytes } else { Measure::Spared },
            _ => true,
        };
        let measures: Vec<Measure> = Measure::ALL.into_iter().filter(fits).collect();
        let number = |text: String| Cell::from(format!("{text:>width$}", width = NUMBER.into()));
        let shown = rows.iter().skip(self.first).take(height).map(|row| {
            let amounts = measures.iter().map(|of| number(row.shown(*of)));
            TableRow::new(amounts.chain([Cell::from(&*row.rule), Cell::from(&*row.key)]))
        });
        let heads = measures.iter().map(|of| {
            let style = if *of == self.by { Modifier::UNDERLINED | Modifier::BOLD } else { Modifier::BOLD };
            number(head(*of).to_owned()).style(Style::new().add_modifier(style))
        });
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let heads = heads.chain([Cell::from("rule").style(bold), Cell::from("key").style(bold)]);
        let rule = rows.iter().map(|row| row.rule.chars().count()).max().unwrap_or(0).clamp(4, 12);
        let numbers = measures.iter().map(|_| Constraint::Length(NUMBER));
        let rule = Constraint::Length(u16::try_from(rule).unwrap_or(u16::MAX));
        let widths = numbers.chain([rule, Constraint::Min(10)]);
        let table = Table::new(shown, widths).header(TableRow::new(heads)).column_spacing(1);
        frame.render_widget(table, area);
    }
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::cli::top::page::tests::JSON;

    struct Test {
        screen: Screen,
        terminal: Terminal<TestBackend>,
    }

    impl Test {
        fn new(width: u16, height: u16) -> Test {
            let screen =
                Screen::new("127.0.0.1:9111".to_owned(), Measure::Requests, HotPage::parse(JSON).unwrap());
            Test { screen, terminal: Terminal::new(TestBackend::new(width, height)).unwrap() }
        }

        fn press(&mut self, keys: &str) {
            for c in keys.chars() {
                let code = match c {
                    '\n' => KeyCode::Enter,
                    '\x1b' => KeyCode::Esc,
                    '\x08' => KeyCode::Backspace,
                    c => KeyCode::Char(c),
                };
                self.screen.handle(&Event::Key(KeyEvent::from(code)));
            }
        }

        fn lines(&mut self) -> Vec<String> {
            self.terminal.draw(|frame| self.screen.draw(frame)).unwrap();
            let buffer = self.terminal.backend().buffer();
            let width = usize::from(buffer.area.width);
            let line =
                |cells: &[ratatui::buffer::Cell]| cells.iter().map(|cell| cell.symbol()).collect::<String>();
            buffer.content.chunks(width).map(|cells| line(cells).trim_end().to_owned()).collect()
        }
    }

    #[test]
    fn the_table_fits_into_80_by_24() {
        let lines = Test::new(80, 24).lines();
        assert_eq!(lines.len(), 24);
        assert_eq!(lines[0], "kennel top  127.0.0.1:9111  by requests");
        assert_eq!(lines[2], "requests/s    bytes/s   misses/s build ms/s rule  key");
        assert_eq!(lines[3], "      1234     2.5MiB        0.2       31.0 pages blog:1:page:7");
        assert_eq!(lines[4], "      99.0        512          -          - users user:17");
        assert!(
            lines[23].starts_with("r requests  b bytes") && lines[23].ends_with("q quit"),
            "{}",
            lines[23]
        );
    }

    #[test]
    fn a_small_terminal_shows_what_fits_and_scrolls() {
        let mut test = Test::new(40, 5);
        assert!(test.lines()[3].contains("1234"));
        test.press("jjjjj");
        assert!(test.lines()[3].starts_with("       1.0"), "{:?}", test.lines());
        test.press("k");
        assert!(test.lines()[3].contains("99.0"));
        for (width, height) in [(1, 1), (10, 2), (300, 100)] {
            Test::new(width, height).lines();
        }
    }

    #[test]
    fn keys_sort_filter_pause_and_quit() {
        let mut test = Test::new(80, 10);
        for (key, word) in
            [("b", "bytes"), ("m", "misses"), ("t", "rebuild"), ("s", "spared"), ("r", "requests")]
        {
            test.press(key);
            assert!(test.lines()[0].ends_with(&format!("by {word}")));
        }
        test.press("/usq\x08");
        let lines = test.lines();
        assert!(lines[9].starts_with("filter: us_") && !test.screen.is_over);
        assert!(lines[3].ends_with("user:17") && lines[4].is_empty(), "{lines:?}");
        test.press("\n");
        assert!(test.lines()[9].starts_with("filter: us  (Esc"));
        test.press("\x1bp");
        assert!(test.lines()[3].ends_with("blog:1:page:7") && test.lines()[0].ends_with("paused"));
        test.press("q");
        assert!(test.screen.is_over);
        let mut test = Test::new(80, 10);
        test.screen.handle(&Event::Key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)));
        assert!(test.screen.is_over);
    }

    #[test]
    fn a_failure_is_shown_and_the_last_keys_stay() {
        let mut test = Test::new(80, 10);
        let (sender, results) = channel();
        sender.send((Measure::Requests, Err("127.0.0.1:9111: refused".to_owned()))).unwrap();
        assert!(take(&results, &mut test.screen));
        let lines = test.lines();
        assert_eq!(lines[1], "127.0.0.1:9111: refused");
        assert!(lines[3].ends_with("blog:1:page:7"));
    }
}
