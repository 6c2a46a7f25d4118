//! A counter of the kernel that an event loop can wait on.
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// An `eventfd(2)`: readable from the first [`EventFd::signal`] to the next [`EventFd::clear`]. Neither blocks. Closed on
/// drop and not inherited by child processes.
#[derive(Debug)]
pub struct EventFd {
    file: File,
}

impl EventFd {
    /// A descriptor that is not readable yet.
    ///
    /// # Errors
    /// The system's: no descriptors are left to the process or the machine.
    pub fn new() -> io::Result<Self> {
        // SAFETY: the call takes two integers and touches no memory of ours.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `fd` is a descriptor that was opened just now and that nobody else knows.
        let owned = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { file: File::from(owned) })
    }

    /// Makes the descriptor readable. Any number of signals before a clear count as one.
    ///
    /// # Errors
    /// The system's; none is known for a descriptor that is open.
    pub fn signal(&self) -> io::Result<()> {
        match (&self.file).write(&1u64.to_ne_bytes()) {
            // A counter at its end is readable, which is all that was asked for.
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(()),
        }
    }

    /// Makes the descriptor unreadable; whether it was readable.
    ///
    /// # Errors
    /// As for [`EventFd::signal`].
    pub fn clear(&self) -> io::Result<bool> {
        match (&self.file).read(&mut [0; 8]) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl AsRawFd for EventFd {
    fn as_raw_fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;

    /// What an event loop would see.
    fn readable(event: &EventFd) -> bool {
        let mut poll = libc::pollfd { fd: event.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one `pollfd` of our own, and its count.
        let ready = unsafe { libc::poll(&raw mut poll, 1, 0) };
        ready == 1 && poll.revents & libc::POLLIN != 0
    }

    #[test]
    fn readable_from_signal_to_clear() {
        let event = EventFd::new().unwrap();
        assert!(!readable(&event) && !event.clear().unwrap());
        event.signal().unwrap();
        event.signal().unwrap();
        assert!(readable(&event) && event.clear().unwrap());
        assert!(!readable(&event) && !event.clear().unwrap());
    }

    #[test]
    fn a_counter_at_its_end_stays_readable() {
        let event = EventFd::new().unwrap();
        (&event.file).write_all(&(u64::MAX - 1).to_ne_bytes()).unwrap();
        event.signal().unwrap();
        assert!(readable(&event) && event.clear().unwrap() && !readable(&event));
    }
}
