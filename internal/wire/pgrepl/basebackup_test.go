package pgrepl

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/testkit"
)

// crate keeps a base backup in memory.
type crate struct {
	archives map[uint32]*buffer
	order    []uint32
	manifest *buffer
	fail     error // of the next Write
}

type buffer struct {
	bytes.Buffer
	c      *crate
	closed bool
}

func (b *buffer) Write(p []byte) (int, error) {
	if b.c.fail != nil {
		return 0, b.c.fail
	}
	return b.Buffer.Write(p)
}

func (b *buffer) Close() error {
	b.closed = true
	return nil
}

func (c *crate) Archive(t Tablespace) (io.WriteCloser, error) {
	if c.archives == nil {
		c.archives = map[uint32]*buffer{}
	}
	if c.archives[t.OID] != nil || c.manifest != nil {
		return nil, errors.New("a second archive of a tablespace, or one behind the manifest")
	}
	c.order = append(c.order, t.OID)
	c.archives[t.OID] = &buffer{c: c}
	return c.archives[t.OID], nil
}

func (c *crate) Manifest() (io.WriteCloser, error) {
	if c.manifest != nil {
		return nil, errors.New("a second manifest")
	}
	c.manifest = &buffer{c: c}
	return c.manifest, nil
}

// unpack writes an archive into dir, and checks that it ends as a tar file does.
func (c *crate) unpack(t *testing.T, oid uint32, dir string) {
	t.Helper()
	b := c.archives[oid]
	if b == nil || !b.closed {
		t.Fatalf("archive %d is missing or not closed", oid)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if b.Len()%512 != 0 || b.Len() < 1024 || !bytes.Equal(b.Bytes()[b.Len()-1024:], make([]byte, 1024)) {
		t.Errorf("archive %d of %d bytes does not end as a tar file", oid, b.Len())
	}
	for r := tar.NewReader(bytes.NewReader(b.Bytes())); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, h.Name)
		switch h.Typeflag {
		case tar.TypeDir:
			err = os.MkdirAll(path, 0o700)
		case tar.TypeReg:
			var content []byte
			if content, err = io.ReadAll(r); err == nil {
				err = os.WriteFile(path, content, 0o600)
			}
		case tar.TypeSymlink: // of a tablespace: tablespace_map says the same
		default:
			t.Fatalf("%s is of type %c", h.Name, h.Typeflag)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// verify has the server's own tool look at the backup.
func (c *crate) verify(t *testing.T, p *lab.Postgres, backup Backup, flags ...string) {
	t.Helper()
	dir := t.TempDir()
	for _, ts := range backup.Tablespaces {
		if ts.OID == 0 {
			c.unpack(t, 0, dir)
			continue
		}
		c.unpack(t, ts.OID, filepath.Join(dir, "pg_tblspc", fmt.Sprint(ts.OID)))
	}
	if err := os.WriteFile(filepath.Join(dir, "backup_manifest"), c.manifest.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), filepath.Join(p.BinDir(), "pg_verifybackup"), append(flags, dir)...).CombinedOutput()
	if err != nil {
		t.Errorf("pg_verifybackup: %v\n%s", err, out)
	}
}

// replace starts the server anew from the backup.
func (c *crate) replace(t *testing.T, p *lab.Postgres, backup Backup, wal *shelf) {
	t.Helper()
	like := p.DataDir()
	p.Kill()
	for _, ts := range backup.Tablespaces {
		dir := ts.Location
		if ts.OID == 0 {
			dir = p.DataDir()
		}
		inside, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range inside {
			if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
				t.Fatal(err)
			}
		}
		c.unpack(t, ts.OID, dir)
		if wal != nil && ts.OID == 0 {
			wal.write(t, filepath.Join(dir, "pg_wal"))
		}
		err = filepath.Walk(dir, func(path string, _ os.FileInfo, err error) error {
			chownLike(t, like, path)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Restart(patient(t)); err != nil {
		t.Fatalf("start from the backup: %v\n%s", err, p.LogTail(20))
	}
}

// write puts the segments into a directory, as a server has them.
func (s *shelf) write(t *testing.T, dir string) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, k := range s.segments {
		if err := os.WriteFile(filepath.Join(dir, name), k.data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestBaseBackupStandsAlone(t *testing.T) {
	p := server(t, nil)
	sql := connect(t, config(t, p), SQL)
	run(t, sql, "create table kept as select i from generate_series(1, 10000) i")
	c := connect(t, config(t, p), Physical)
	var s crate
	var began Backup
	backup, err := c.BaseBackup(patient(t), BackupConfig{Fast: true, WAL: true, Manifest: true, Checksums: "SHA256", Sizes: true, Label: "it's ours"}, &s,
		func(b Backup) {
			began = b
			run(t, sql, "insert into kept values (0)") // the log brings it into the backup
		})
	if err != nil {
		t.Fatal(err)
	}
	size := int64(s.archives[0].Len() + s.manifest.Len())
	if len(backup.Tablespaces) != 1 || backup.Start == 0 || backup.Stop <= backup.Start || backup.StartTimeline != 1 || backup.StopTimeline != 1 || backup.Bytes < size || backup.Bytes > size+1024 {
		t.Errorf("backup %+v of %d bytes", backup, size)
	}
	if began.Start != backup.Start || len(began.Tablespaces) != 1 || began.Tablespaces[0].Size < 1<<20 || began.Tablespaces[0].Archive() != "base.tar" {
		t.Errorf("began as %+v", began)
	}
	if _, err := c.Identify(patient(t)); err != nil {
		t.Errorf("the connection afterwards: %v", err)
	}
	s.verify(t, p, backup)
	run(t, sql, "insert into kept values (-1)") // too late
	s.replace(t, p, backup, nil)
	if got := run(t, connect(t, config(t, p), SQL), "select count(*) || ' from ' || min(i) from kept"); got != "10001 from 0" {
		t.Errorf("restored: %s", got)
	}
}

func TestBaseBackupWithTablespaceAndSeparateLog(t *testing.T) {
	p := server(t, nil)
	sql := connect(t, config(t, p), SQL)
	space := filepath.Join(filepath.Dir(p.DataDir()), "space, the final")
	if err := os.Mkdir(space, 0o700); err != nil {
		t.Fatal(err)
	}
	chownLike(t, p.DataDir(), space)
	run(t, sql, "create tablespace space location "+literal(space), "create table kept (i int) tablespace space",
		"insert into kept select generate_series(1, 10000)")
	c := connect(t, config(t, p), Physical)
	walConn := connect(t, config(t, p), Physical)
	log := newShelf()
	if _, err := walConn.CreateSlot(patient(t), SlotConfig{Name: "backup", Kind: PhysicalSlot, Temporary: true, Reserve: true}); err != nil {
		t.Fatal(err)
	}
	var s crate
	backup, err := c.BaseBackup(patient(t), BackupConfig{Fast: true, Manifest: true, MaxRate: 1 << 20}, &s, func(Backup) {
		run(t, sql, "insert into kept values (0)")
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(backup.Tablespaces) != 2 || backup.Tablespaces[0].Location != space || backup.Tablespaces[0].Size != 0 ||
		backup.Tablespaces[0].Archive() != fmt.Sprint(backup.Tablespaces[0].OID, ".tar") || len(s.order) != 2 || s.order[1] != 0 {
		t.Errorf("tablespaces %+v, archives in the order %v", backup.Tablespaces, s.order)
	}
	cfg := ReceiveConfig{Slot: "backup", Start: backup.Start, Timeline: backup.StartTimeline, Until: backup.Stop}
	if _, flushed, err := walConn.ReceiveWAL(patient(t), cfg, log); err != nil || flushed < backup.Stop {
		t.Fatalf("log up to %s of %s: %v", flushed, backup.Stop, err)
	}
	s.verify(t, p, backup, "-n")
	s.replace(t, p, backup, log)
	if got := run(t, connect(t, config(t, p), SQL), "select count(*) || ' from ' || min(i) from kept"); got != "10001 from 0" {
		t.Errorf("restored: %s", got)
	}
}

func TestBaseBackupEndsWithItsSink(t *testing.T) {
	p := server(t, nil)
	c := connect(t, config(t, p), Physical)
	s := crate{fail: errors.New("disk full")}
	_, err := c.BaseBackup(patient(t), BackupConfig{Fast: true}, &s, nil)
	if !errors.Is(err, s.fail) || !strings.Contains(err.Error(), "write base.tar") || !s.archives[0].closed {
		t.Errorf("%v", err)
	}
	if _, err := c.Identify(patient(t)); !errors.Is(err, s.fail) {
		t.Errorf("the connection afterwards: %v", err)
	}
	_ = c.Close()
	sql := connect(t, config(t, p), SQL)
	testkit.Eventually(t, "the server has given up", func() bool { return run(t, sql, "select count(*) from pg_stat_replication") == "0" })
}

func TestBaseBackupCommand(t *testing.T) {
	everything := BackupConfig{Label: "a'b", Fast: true, WAL: true, WaitForArchive: true, MaxRate: 32, Manifest: true, Checksums: "SHA512", Sizes: true, SkipChecks: true}
	for _, tt := range []struct {
		cfg     BackupConfig
		version int
		want    string
	}{
		{BackupConfig{}, 150018, "BASE_BACKUP (LABEL 'weir', WAIT false, TABLESPACE_MAP)"},
		{BackupConfig{}, 120000, "BASE_BACKUP LABEL 'weir' NOWAIT TABLESPACE_MAP"},
		{everything, 180000, "BASE_BACKUP (LABEL 'a''b', PROGRESS, CHECKPOINT 'fast', WAL, MAX_RATE 32, TABLESPACE_MAP, VERIFY_CHECKSUMS false, MANIFEST 'yes', MANIFEST_CHECKSUMS 'SHA512')"},
		{everything, 140005, "BASE_BACKUP LABEL 'a''b' PROGRESS FAST WAL MAX_RATE 32 TABLESPACE_MAP NOVERIFY_CHECKSUMS MANIFEST 'yes' MANIFEST_CHECKSUMS 'SHA512'"},
	} {
		got, err := baseBackup(tt.cfg, tt.version)
		if err != nil || got != tt.want {
			t.Errorf("%+v for %d:\n%s, %v, want\n%s", tt.cfg, tt.version, got, err, tt.want)
		}
	}
	for want, cfg := range map[string]BackupConfig{
		"one line":               {Label: "a\nb"},
		"KiB/s":                  {MaxRate: 31},
		"manifests need":         {Manifest: true},
		"without a manifest":     {Checksums: "SHA256"},
		`checksum algorithm "x"`: {Manifest: true, Checksums: "x"},
	} {
		version := 150000
		if want == "manifests need" {
			version = 120000
		}
		if got, err := baseBackup(cfg, version); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %s, %v, want %q", cfg, got, err, want)
		}
	}
}
