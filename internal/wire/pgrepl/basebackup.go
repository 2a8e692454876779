package pgrepl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/weirdb/weir/internal/wire/pgwire"
)

// BackupConfig configures a base backup.
type BackupConfig struct {
	// Label is written to backup_label. Default: "weir".
	Label string
	// Fast makes the server do its checkpoint at once instead of spreading it over
	// checkpoint_timeout, which other sessions notice less. Default: false.
	Fast bool
	// WAL includes the log that is needed to start the backup, so that it is self-contained.
	// Otherwise ReceiveWAL fetches the log from Backup.Start to Backup.Stop. Default: false.
	WAL bool
	// WaitForArchive makes the server wait until its archive_command has archived the required
	// log. Default: false.
	WaitForArchive bool
	// MaxRate limits the transfer, in KiB per second, 32 to 1048576. Default: 0, no limit.
	MaxRate int
	// Manifest makes the server send a list of all files with their checksums. It needs
	// PostgreSQL 13. Default: false.
	Manifest bool
	// Checksums is the manifest's algorithm: NONE, CRC32C, SHA224, SHA256, SHA384
	// or SHA512. Default: the server's, CRC32C.
	Checksums string
	// Sizes makes the server compute what it will send before it begins, for Tablespace.Size.
	// Default: false.
	Sizes bool
	// SkipChecks makes the server skip verifying the checksums of the pages that it sends.
	// Default: false.
	SkipChecks bool
}

// Tablespace is the part of a cluster that is sent as one archive.
type Tablespace struct {
	// OID is the tablespace's; 0 for the data directory itself.
	OID uint32
	// Location is its directory on the server; "" for the data directory.
	Location string
	// Size is about how much will be sent, in bytes, rounded to KiB; 0 if unknown.
	Size int64
}

// Archive returns the name of its tar file, as pg_basebackup names it.
func (t Tablespace) Archive() string {
	if t.OID == 0 {
		return "base.tar"
	}
	return strconv.FormatUint(uint64(t.OID), 10) + ".tar"
}

// BackupSink receives a base backup. One stream is open at a time.
type BackupSink interface {
	// Archive begins the tar file of a tablespace. A backup has one for each; that of the data
	// directory is the last. The file tablespace_map in it says where the others belong.
	Archive(t Tablespace) (io.WriteCloser, error)
	// Manifest begins the file backup_manifest. It comes after all archives.
	Manifest() (io.WriteCloser, error)
}

// Backup is a completed base backup.
type Backup struct {
	// Start is where the recovery of the backup begins, on timeline StartTimeline. It needs the
	// log from there to Stop.
	Start         LSN
	StartTimeline uint32
	Stop          LSN
	StopTimeline  uint32
	Tablespaces   []Tablespace
	Bytes         int64 // of all archives and the manifest
}

// BaseBackup copies the running cluster into sink, on a connection of mode Physical or Logical.
// begun, if not nil, is called with Start and Tablespaces when the server has begun: from then
// on its log is needed.
//
// The connection can be used again after success, and after an error from the server, but not
// if sink fails or ctx ends: then Close ends the backup on the server, too.
func (c *Conn) BaseBackup(ctx context.Context, cfg BackupConfig, sink BackupSink, begun func(Backup)) (Backup, error) {
	command, err := baseBackup(cfg, c.version)
	if err != nil {
		return Backup{}, fmt.Errorf("take base backup: %w", err)
	}
	r := &backupReader{conn: c, sink: sink, begun: begun}
	if err := c.write(ctx, pgwire.AppendQuery(nil, command)); err != nil {
		return Backup{}, fmt.Errorf("take base backup: %w", err)
	}
	if err := r.run(ctx); err != nil {
		return Backup{}, fmt.Errorf("take base backup: %w", err)
	}
	return r.backup, nil
}

// baseBackup returns the command, in the syntax of the server's version.
func baseBackup(cfg BackupConfig, version int) (string, error) {
	if cfg.Label == "" {
		cfg.Label = "weir"
	}
	algorithms := []string{"", "NONE", "CRC32C", "SHA224", "SHA256", "SHA384", "SHA512"}
	switch {
	case len(cfg.Label) > 1000 || strings.ContainsAny(cfg.Label, "\n\r\x00"):
		return "", errors.New("the label must be one line of at most 1000 bytes")
	case cfg.MaxRate != 0 && (cfg.MaxRate < 32 || cfg.MaxRate > 1<<20):
		return "", fmt.Errorf("rate of %d KiB/s: want 32 to 1048576", cfg.MaxRate)
	case cfg.Manifest && version < 130000:
		return "", fmt.Errorf("manifests need PostgreSQL 13: %w", ErrVersion)
	case !cfg.Manifest && cfg.Checksums != "":
		return "", errors.New("checksums without a manifest")
	}
	known := false
	for _, a := range algorithms {
		known = known || a == cfg.Checksums
	}
	if !known {
		return "", fmt.Errorf("checksum algorithm %q: want one of%s", cfg.Checksums, strings.Join(algorithms, " "))
	}
	if version < 150000 {
		return "BASE_BACKUP " + strings.Join(backupOptions(cfg, oldBackupSyntax), " "), nil
	}
	return "BASE_BACKUP (" + strings.Join(backupOptions(cfg, newBackupSyntax), ", ") + ")", nil
}

// backupSyntax is how a range of server versions spells options that have changed.
type backupSyntax struct{ fast, noWait, noVerify string }

var (
	oldBackupSyntax = backupSyntax{"FAST", "NOWAIT", "NOVERIFY_CHECKSUMS"}
	newBackupSyntax = backupSyntax{"CHECKPOINT 'fast'", "WAIT false", "VERIFY_CHECKSUMS false"}
)

func backupOptions(cfg BackupConfig, syntax backupSyntax) []string {
	options := []string{"LABEL " + literal(cfg.Label)}
	add := func(set bool, option string) {
		if set {
			options = append(options, option)
		}
	}
	add(cfg.Sizes, "PROGRESS")
	add(cfg.Fast, syntax.fast)
	add(cfg.WAL, "WAL")
	add(!cfg.WaitForArchive, syntax.noWait)
	add(cfg.MaxRate != 0, fmt.Sprintf("MAX_RATE %d", cfg.MaxRate))
	add(true, "TABLESPACE_MAP")
	add(cfg.SkipChecks, syntax.noVerify)
	add(cfg.Manifest, "MANIFEST 'yes'")
	add(cfg.Checksums != "", "MANIFEST_CHECKSUMS "+literal(cfg.Checksums))
	return options
}
