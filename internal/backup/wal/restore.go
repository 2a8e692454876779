package wal

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/weirdb/weir/internal/backup/archive"
	"github.com/weirdb/weir/internal/backup/bulk"
)

// DirOptions say how a base backup is restored into a data directory.
type DirOptions struct {
	// Dir is the data directory. It must be empty or not exist. Required.
	Dir string
	// UID and GID own all files. Default: -1, the user that restores.
	UID, GID int
	// Tablespaces maps locations of tablespaces on the source to new ones. Default: they stay
	// where they were.
	Tablespaces map[string]string
	// RestoreCommand is the server's restore_command. Default: "", the server replays only the
	// log that the backup itself holds.
	RestoreCommand string
	// Target is where the replay ends. It needs a RestoreCommand.
	Target Target
	// Progress counts the bytes that were written. Default: nil, progress is not counted.
	Progress *bulk.Progress
}

// controlFile is the file that a server reads first. It gets its name last, so that no server
// starts on an incomplete data directory.
const (
	controlFile     = "global/pg_control"
	controlWithheld = "global/pg_control.weir-incomplete"
)

// RestoreDir writes the data directory of a base backup, ready to be started. If it fails, it
// leaves what it wrote, but no server starts on that.
func RestoreDir(ctx context.Context, r *archive.Reader, opts DirOptions) error {
	b, err := readBase(r.Manifest())
	if err != nil {
		return err
	}
	switch {
	case opts.RestoreCommand == "" && opts.Target.set() > 0:
		return errors.New("a target needs log to be replayed, and there is none in the archive")
	case opts.RestoreCommand == "" && !b.withLog:
		return fmt.Errorf("backup %s holds no log, and there is none in the archive: it cannot be started", r.Manifest().ID)
	}
	if err := opts.Target.Validate(); err != nil {
		return err
	}
	if why, err := opts.Target.before(r.Manifest().Summary); err != nil || why != "" {
		return errors.Join(err, fmt.Errorf("the target cannot be reached: %s", why))
	}
	d := &dirRestore{DirOptions: opts, r: r, locations: map[string]string{}}
	for oid, source := range b.tablespaces {
		d.locations[oid] = source
		if to, ok := opts.Tablespaces[source]; ok {
			d.locations[oid] = to
		}
	}
	for source := range opts.Tablespaces {
		if !slices.Contains(slices.Collect(maps.Values(b.tablespaces)), source) {
			return fmt.Errorf("the backup has no tablespace in %s", source)
		}
	}
	if err := d.run(ctx); err != nil {
		return fmt.Errorf("restore %s into %s: %w", r.Manifest().ID, opts.Dir, err)
	}
	return nil
}

// A dirRestore is one call of RestoreDir.
type dirRestore struct {
	DirOptions
	r         *archive.Reader
	locations map[string]string // of tablespaces, by OID
}

func (d *dirRestore) run(ctx context.Context) error {
	d.Progress.Phase("files")
	archives := map[string][]archive.Chunk{}
	for _, c := range d.r.Manifest().Chunks {
		if c.Kind == KindBase && c.Path != manifestPath {
			name := path.Base(path.Dir(c.Path))
			archives[name] = append(archives[name], c)
			d.Progress.Expect(c.PlainBytes, 1)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(archives)) {
		// Parts are numbered with four digits; there may be more than 9,999.
		slices.SortFunc(archives[name], func(a, b archive.Chunk) int { return a.Part - b.Part })
		dir := d.Dir
		if oid := strings.TrimSuffix(name, ".tar"); oid != "base" {
			location, ok := d.locations[oid]
			if !ok {
				return fmt.Errorf("the manifest says nothing of tablespace %s", oid)
			}
			dir = location
		}
		if err := d.unpack(ctx, name, dir, archives[name]); err != nil {
			return fmt.Errorf("unpack %s: %w", name, err)
		}
	}
	return d.finish(ctx)
}

// unpack writes the files of one tablespace.
func (d *dirRestore) unpack(ctx context.Context, name, dir string, chunks []archive.Chunk) (err error) {
	rt, err := d.emptyDir(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rt.Close()) }()
	disk, err := openDisk(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, disk.Close()) }()
	in := &chunkChain{ctx: ctx, d: d, chunks: chunks}
	defer func() { err = errors.Join(err, in.close()) }()
	t := tar.NewReader(in)
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if err := d.entry(rt, h, t); err != nil {
			return err
		}
	}
	// The chunks may go on after the end of the tar file; each is verified only when it was
	// read to its end.
	if _, err := io.Copy(io.Discard, in); err != nil {
		return err
	}
	return disk.sync()
}

// emptyDir opens a directory that has to be empty, and creates it if it does not exist.
func (d *dirRestore) emptyDir(dir string) (*os.Root, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	if len(entries) > 0 {
		return nil, fmt.Errorf("directory %s is not empty: move what is in it away, or name another one (a tablespace's by --tablespace-mapping)", dir)
	}
	rt, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	return rt, errors.Join(rt.Chmod(".", 0o700), d.own(rt, "."))
}

func (d *dirRestore) own(rt *os.Root, name string) error {
	if d.UID < 0 && d.GID < 0 {
		return nil
	}
	return rt.Lchown(name, d.UID, d.GID)
}

// entry writes one file or directory. The os.Root prevents names that lead outside of the
// directory.
func (d *dirRestore) entry(rt *os.Root, h *tar.Header, content io.Reader) error {
	name := path.Clean(h.Name)
	if name == "." {
		return nil
	}
	switch h.Typeflag {
	case tar.TypeDir:
		if err := rt.Mkdir(name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		return d.own(rt, name)
	case tar.TypeReg:
	default:
		return fmt.Errorf("%s: neither a file nor a directory", h.Name)
	}
	switch name {
	case controlFile:
		name = controlWithheld
	case "tablespace_map":
		text, err := io.ReadAll(io.LimitReader(content, 1<<20))
		if err != nil {
			return err
		}
		content = strings.NewReader(d.tablespaceMap(string(text)))
	case "recovery.signal", "standby.signal", "postmaster.pid":
		return nil // the links of the source
	}
	return d.write(rt, name, content)
}

func (d *dirRestore) write(rt *os.Root, name string, content io.Reader) (err error) {
	f, err := rt.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := io.Copy(f, content); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return d.own(rt, name)
}

// tablespaceMap returns tablespace_map with the new locations: a line "OID location" for each
// tablespace, from which the server creates its links.
func (d *dirRestore) tablespaceMap(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		oid, _, _ := strings.Cut(line, " ")
		if location, ok := d.locations[oid]; ok {
			// The server escapes characters that would end the line.
			escaped := strings.NewReplacer(`\`, `\\`, "\n", "\\\n", "\r", "\\\r").Replace(location)
			line = oid + " " + escaped + "\n"
		}
		b.WriteString(line)
	}
	return b.String()
}

// finish writes the settings, and then gives the control file its name, so that a server can
// start.
func (d *dirRestore) finish(ctx context.Context) (err error) {
	d.Progress.Phase("settings")
	rt, err := os.OpenRoot(d.Dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rt.Close()) }()
	disk, err := openDisk(d.Dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, disk.Close()) }()
	if err := d.serverManifest(ctx, rt); err != nil {
		return err
	}
	if d.RestoreCommand != "" {
		if err := d.settings(rt); err != nil {
			return err
		}
		if err := d.write(rt, "recovery.signal", strings.NewReader("")); err != nil {
			return err
		}
	}
	if err := disk.sync(); err != nil {
		return err
	}
	if err := rt.Rename(controlWithheld, controlFile); err != nil {
		return fmt.Errorf("the backup holds no %s: %w", controlFile, err)
	}
	return disk.sync()
}

// serverManifest writes backup_manifest, which servers before version 13 do not have.
func (d *dirRestore) serverManifest(ctx context.Context, rt *os.Root) error {
	in, err := d.r.Chunk(ctx, manifestPath)
	if errors.Is(err, archive.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(d.write(rt, "backup_manifest", in), in.Close())
}

// settings appends the settings for the recovery to postgresql.auto.conf. The last value of a
// setting wins.
func (d *dirRestore) settings(rt *os.Root) (err error) {
	const name = "postgresql.auto.conf"
	f, err := rt.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	text := "\n# Written by weir restore, for the recovery only.\n"
	for _, s := range d.Target.settings(d.RestoreCommand) {
		text += s[0] + " = '" + strings.NewReplacer("'", "''", `\`, `\\`).Replace(s[1]) + "'\n"
	}
	if _, err := f.WriteString(text); err != nil {
		return err
	}
	return d.own(rt, name)
}

// A disk is the file system of a directory.
type disk struct{ *os.File }

// openDisk opens the directory before anything is written to it: Linux reports only those
// failed writes that happened after the file was opened.
func openDisk(dir string) (disk, error) {
	f, err := os.Open(filepath.Clean(dir))
	return disk{f}, err
}

// sync flushes the file system.
func (d disk) sync() error {
	if err := syncFileSystem(d.File); err != nil {
		return fmt.Errorf("flush %s: %w", d.Name(), err)
	}
	return nil
}

// A chunkChain reads chunks one after the other and verifies each.
type chunkChain struct {
	ctx    context.Context
	d      *dirRestore
	chunks []archive.Chunk
	in     io.ReadCloser
	done   func()
}

// Read implements io.Reader.
func (c *chunkChain) Read(p []byte) (int, error) {
	for {
		if c.in == nil {
			if len(c.chunks) == 0 {
				return 0, io.EOF
			}
			var err error
			if c.in, err = c.d.r.Chunk(c.ctx, c.chunks[0].Path); err != nil {
				return 0, err
			}
			c.done = c.d.Progress.Begin(c.chunks[0].Path)
			c.chunks = c.chunks[1:]
		}
		n, err := c.in.Read(p)
		c.d.Progress.Add(int64(n), 0)
		if errors.Is(err, io.EOF) {
			err = c.close()
		}
		if n > 0 || err != nil {
			return n, err
		}
	}
}

func (c *chunkChain) close() error {
	if c.in == nil {
		return nil
	}
	in := c.in
	c.in = nil
	c.done()
	return in.Close()
}
