//! Writes the seeds that the code knows to `testing/fuzz/seeds`. Other files there stay.

use std::{fs, io, path::Path};

fn main() -> io::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../seeds");
    for seed in atoll_fuzz_targets::seeds::all() {
        let folder = root.join(seed.target);
        fs::create_dir_all(&folder)?;
        fs::write(folder.join(seed.name), seed.bytes)?;
    }
    Ok(())
}
