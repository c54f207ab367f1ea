//! What executables and libraries need of the machine that they run on, from 64-bit little-endian ELF files (elf(5)).
//! Works for any architecture, unlike `ldd`.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

/// Names the loader (`PT_INTERP`).
const PT_INTERP: u32 = 3;

/// Whether the kernel can run `executable` without a loader or shared libraries.
///
/// # Errors
/// When the file cannot be read or is not a 64-bit little-endian ELF.
pub(crate) fn is_static(executable: &Path) -> Result<bool> {
    let bytes = fs::read(executable).with_context(|| executable.display().to_string())?;
    is_static_elf(&bytes).with_context(|| executable.display().to_string())
}

fn is_static_elf(bytes: &[u8]) -> Result<bool> {
    ensure!(bytes.starts_with(b"\x7fELF\x02\x01"), "not a 64-bit little-endian ELF file");
    let short = "truncated: ends within its headers";
    let table = u64::from_le_bytes(at(bytes, 0x20).context(short)?) as usize;
    let size = usize::from(u16::from_le_bytes(at(bytes, 0x36).context(short)?));
    let count = usize::from(u16::from_le_bytes(at(bytes, 0x38).context(short)?));
    for header in 0..count {
        let kind = u32::from_le_bytes(at(bytes, table + header * size).context(short)?);
        if kind == PT_INTERP {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The newest version of glibc whose symbols a library needs, of the names of versions in it; `None` without glibc.
///
/// # Errors
/// When the file cannot be read.
pub(crate) fn newest_glibc(library: &Path) -> Result<Option<(u32, u32)>> {
    let bytes = fs::read(library).with_context(|| library.display().to_string())?;
    Ok(newest_glibc_in(&bytes))
}

fn newest_glibc_in(bytes: &[u8]) -> Option<(u32, u32)> {
    let names = bytes.split(|byte| *byte == 0).filter_map(|name| name.strip_prefix(b"GLIBC_"));
    let versions = names.filter_map(|version| {
        let (major, minor) = str::from_utf8(version).ok()?.split_once('.')?;
        // Some have a third number.
        let minor = minor.split('.').next()?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    });
    versions.max()
}

fn at<const N: usize>(bytes: &[u8], offset: usize) -> Option<[u8; N]> {
    bytes.get(offset..)?.get(..N)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executable_with_a_loader_is_not_static() {
        // The shell of any distribution with shared libraries names one.
        assert!(!is_static(Path::new("/bin/sh")).unwrap());
        let mut bytes = fs::read("/bin/sh").unwrap();
        let table = u64::from_le_bytes(at(&bytes, 0x20).unwrap()) as usize;
        let size = usize::from(u16::from_le_bytes(at(&bytes, 0x36).unwrap()));
        let count = usize::from(u16::from_le_bytes(at(&bytes, 0x38).unwrap()));
        for header in 0..count {
            bytes[table + header * size] = 1;
        }
        assert!(is_static_elf(&bytes).unwrap());
    }

    #[test]
    fn version_of_glibc_is_found() {
        let names = b"\0libc.so.6\0GLIBC_2.2.5\0GLIBC_2.34\0GLIBC_2.9\0GLIBC_PRIVATE\0GLIBC_2.x\0";
        assert_eq!(newest_glibc_in(names), Some((2, 34)));
        assert_eq!(newest_glibc_in(b"\0libc.musl-x86_64.so.1\0_GLIBC_2.34\0"), None);
        if cfg!(target_env = "gnu") {
            let newest = newest_glibc(Path::new("/bin/sh")).unwrap();
            assert!(newest.is_some_and(|(major, minor)| major == 2 && minor >= 2), "{newest:?}");
        }
    }

    #[test]
    fn files_that_are_not_elf_are_rejected() {
        assert!(is_static_elf(b"#!/bin/sh\n").is_err());
        assert!(is_static_elf(b"\x7fELF\x02\x01").is_err());
    }
}
