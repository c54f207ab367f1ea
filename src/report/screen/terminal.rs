//! The terminal of standard error during a live screen: [`take`] takes it over, [`restore`] restores it,
//! also on a panic of any thread.
//!
//! The kernel still turns keys into signals, so Ctrl-C is SIGINT as usual. Keys are not echoed, and
//! input typed during the run is discarded. Source: termios(3).

use std::io::{self, BufWriter, Stderr, Write};
use std::panic;
use std::sync::{Mutex, Once, PoisonError};

use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen};
use ratatui::layout::Rect;
use rustix::process::getpgrp;
use rustix::termios::{
    InputModes, LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetpgrp,
    tcgetwinsize, tcsetattr,
};

/// Buffers one drawing, so it takes one system call and never shows half.
pub(super) type Backend = CrosstermBackend<BufWriter<Stderr>>;

/// Size of a drawing in bytes above which it is written in parts.
const DRAWING_BYTES: usize = 32 * 1024;
/// Size of terminals that do not report one.
const SIZE_DEFAULT: Rect = Rect { x: 0, y: 0, width: 80, height: 24 };
/// Disables a control character (`_POSIX_VDISABLE`).
const DISABLED: u8 = 0;

/// The terminal settings before the live screen.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

/// Takes over the terminal: alternate screen, no cursor, no echo. Returns `None` if that is not possible,
/// or if the terminal belongs to another job of the shell.
pub(super) fn take() -> Option<Backend> {
    let stderr = io::stderr();
    if tcgetpgrp(&stderr).ok()? != getpgrp() {
        return None;
    }
    let before = tcgetattr(&stderr).ok()?;
    restore_on_panic();
    let mut quiet = before.clone();
    quiet.local_modes -= LocalModes::ECHO | LocalModes::ICANON;
    // Ctrl-S would block the run at its next drawing; Ctrl-Z would leave the shell on this screen.
    quiet.input_modes -= InputModes::IXON;
    quiet.special_codes[SpecialCodeIndex::VSUSP] = DISABLED;
    tcsetattr(&stderr, OptionalActions::Now, &quiet).ok()?;
    *BEFORE.lock().unwrap_or_else(PoisonError::into_inner) = Some(before);
    if execute!(&stderr, EnterAlternateScreen, Hide).is_err() {
        restore();
        return None;
    }
    Some(CrosstermBackend::new(BufWriter::with_capacity(DRAWING_BYTES, stderr)))
}

/// Restores the terminal; does nothing if it was not taken over.
pub(super) fn restore() {
    let before = BEFORE.lock().unwrap_or_else(PoisonError::into_inner).take();
    let Some(before) = before else { return };
    // A terminal that is gone needs no restoring.
    let mut stderr = io::stderr();
    let _ = execute!(stderr, LeaveAlternateScreen, Show);
    let _ = stderr.flush();
    let _ = tcsetattr(&stderr, OptionalActions::Flush, &before);
}

/// Returns whether the live screen has the terminal.
pub(super) fn is_taken() -> bool {
    BEFORE.lock().unwrap_or_else(PoisonError::into_inner).is_some()
}

/// Returns columns and rows.
pub(super) fn size() -> Rect {
    match tcgetwinsize(io::stderr()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => {
            Rect { width: size.ws_col, height: size.ws_row, ..SIZE_DEFAULT }
        }
        _ => SIZE_DEFAULT,
    }
}

/// Restores the terminal before a panic message is printed.
fn restore_on_panic() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            restore();
            before(panic);
        }));
    });
}
