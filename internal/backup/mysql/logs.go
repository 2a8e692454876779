package mysql

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/weirdb/weir/internal/backup/archive"
	my "github.com/weirdb/weir/internal/backup/bulk/mysql"
	"github.com/weirdb/weir/internal/wire/binlog"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// Archived logs are stored in a repository beside the backups, each in a directory:
//
//	binlog/6f0a2c.../                        a name, by default made of the server's id
//	    source.json                          the server's id
//	    end.json                             up to where it is archived
//	    binlog.000007/000000000004.zst       a segment: see bulk/mysql.LogSegment
const (
	logRoot    = "binlog/"
	sourceName = "source.json"
	maxSource  = 64 << 10
)

// logSource is the content of source.json.
type logSource struct {
	Server string `json:"server"` // "" if the server has no id
}

// A Log is the archived binary log of one server.
type Log struct {
	Name     string `json:"name"`                // name of the log in the archive
	Server   string `json:"server_id,omitempty"` // server_id of the server
	Segments int    `json:"segments"`            // number of segments
	// Start is the position of its beginning in the server's log, as FILE:POS.
	Start string `json:"start"`
	End   string `json:"end"` // position of the end, as FILE:POS

	start, end binlog.Position
}

// String formats the log as a line of a list.
func (l Log) String() string {
	return fmt.Sprintf("binlog %s, %s to %s: %d segments", l.Name, l.Start, l.End, l.Segments)
}

// Dir returns the directory of the log in a repository.
func (l Log) Dir() string { return LogDir(l.Name) }

// LogDir returns the directory of the log with the given name in a repository.
func LogDir(name string) string { return logRoot + name + "/" }

var logName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$`)

// CheckLogName returns an error if a name cannot be that of a log.
func CheckLogName(name string) error {
	// A log named like a file of a backup would be taken for one.
	if !logName.MatchString(name) || strings.HasPrefix(name, "run-") || strings.HasPrefix(name, "journal-") {
		return fmt.Errorf("%q is no name for a log: letters, digits, '.', '_' and '-' are, unless run- or journal- is in front", name)
	}
	return nil
}

// DefaultLogName returns the default name of a server's log: the server's id in hexadecimal
// digits and dashes, or "server" if it has none.
func DefaultLogName(id string) string {
	if raw, err := base64.StdEncoding.DecodeString(id); err == nil && len(raw) > 8 {
		return hex.EncodeToString(raw) // MariaDB's
	}
	if CheckLogName(id) != nil {
		return "server"
	}
	return id
}

// ServerID returns a server's id in its log's archive and in the manifests of its backups:
// MySQL's server_uuid, or MariaDB's server_uid, which versions before 10.11.9 lack; "" then.
func ServerID(ctx context.Context, dsn string) (string, error) {
	cfg, err := mywire.ParseClientDSN(dsn)
	if err != nil {
		return "", err
	}
	cfg.Database = ""
	return serverIDAt(ctx, cfg)
}

func serverIDAt(ctx context.Context, cfg mywire.ConnectConfig) (string, error) {
	s, err := my.Connect(ctx, cfg, "")
	if err != nil {
		return "", err
	}
	id, err := serverID(ctx, s)
	return id, errors.Join(err, s.Close())
}

func serverID(ctx context.Context, s *my.Session) (string, error) {
	variable := "@@server_uuid"
	if s.IsMariaDB() {
		variable = "@@server_uid"
	}
	row, err := s.Row(ctx, "SELECT "+variable)
	if unknownVariable := uint16(1193); s.IsMariaDB() && my.ErrorCode(err) == unknownVariable {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("ask for the server's id: %w", err)
	}
	return row[0], nil
}

// readSource reads source.json.
func readSource(ctx context.Context, s archive.Storage, dir string) (source logSource, err error) {
	in, err := s.Open(ctx, dir+sourceName, 0)
	if err != nil {
		return source, err
	}
	text, err := io.ReadAll(io.LimitReader(in, maxSource))
	if err = errors.Join(err, in.Close()); err == nil {
		err = json.Unmarshal(text, &source)
	}
	if err != nil {
		return source, fmt.Errorf("read %s: %w", dir+sourceName, err)
	}
	return source, nil
}

// Logs returns all archived logs of a storage, in the order of their names. It omits empty
// ones.
func Logs(ctx context.Context, s archive.Storage) ([]Log, error) {
	var all []Log
	for o, err := range s.List(ctx, logRoot, false) {
		if err != nil {
			return nil, fmt.Errorf("list binary logs: %w", err)
		}
		name, isDir := strings.CutSuffix(strings.TrimPrefix(o.Name, logRoot), "/")
		if !isDir || CheckLogName(name) != nil {
			continue
		}
		l, err := openLog(ctx, s, name)
		if err != nil {
			return nil, err
		}
		if l.Segments > 0 {
			all = append(all, l)
		}
	}
	slices.SortFunc(all, func(a, b Log) int { return cmp.Compare(a.Name, b.Name) })
	return all, nil
}

// openLog reads the state of one log. One that does not exist has no segments.
func openLog(ctx context.Context, s archive.Storage, name string) (Log, error) {
	l := Log{Name: name}
	source, err := readSource(ctx, s, l.Dir())
	if errors.Is(err, archive.ErrNotExist) {
		return l, nil // it is just being begun, or not weir's
	}
	if err != nil {
		return l, err
	}
	l.Server = source.Server
	segments, err := my.ListLogs(ctx, s, l.Dir())
	if err != nil || len(segments) == 0 {
		return l, err
	}
	l.Segments = len(segments)
	l.start = binlog.Position{File: segments[0].File, Pos: segments[0].Start}
	if l.end, err = my.LogEnd(ctx, s, l.Dir()); err != nil {
		return l, fmt.Errorf("binary log %s: %w", name, err)
	}
	l.Start, l.End = l.start.String(), l.end.String()
	return l, nil
}

// compare orders positions of one server as in its log.
func compare(a, b binlog.Position) int {
	number := func(file string) uint64 {
		n, err := strconv.ParseUint(file[strings.LastIndexByte(file, '.')+1:], 10, 64)
		if err != nil {
			return 0 // cannot happen: servers number their files
		}
		return n
	}
	return cmp.Or(cmp.Compare(number(a.File), number(b.File)), cmp.Compare(a.Pos, b.Pos))
}

// Before reports whether a comes before b in the log of one server.
func Before(a, b binlog.Position) bool { return compare(a, b) < 0 }

// ManifestPosition returns the position in the binary log that a backup shows; zero if its
// manifest has none.
func ManifestPosition(p archive.Position) binlog.Position {
	if p.Binlog == "" || p.Offset < 0 {
		return binlog.Position{}
	}
	return binlog.Position{File: p.Binlog, Pos: uint64(p.Offset)}
}

// Settled returns the position at which all definitions of a backup had been read; zero if its
// manifest has none, as in earlier versions.
func Settled(m *archive.Manifest) binlog.Position {
	text := m.Attributes[attrSettled]
	i := strings.LastIndexByte(text, ':')
	if i < 0 {
		return binlog.Position{}
	}
	at, err := strconv.ParseUint(text[i+1:], 10, 64)
	if err != nil {
		return binlog.Position{}
	}
	return binlog.Position{File: text[:i], Pos: at}
}

// holds reports whether a log can be replayed from a position on.
func (l Log) holds(p binlog.Position) bool {
	return l.Segments > 0 && compare(l.start, p) <= 0 && compare(p, l.end) <= 0
}

// mayBe reports whether a log may belong to a server: either id may be unknown.
func (l Log) mayBe(server string) bool { return l.Server == server || l.Server == "" || server == "" }

// LogOf returns the log that can be replayed on a backup: the one with the given name, or for
// "" the only one that fits. An error matches my.ErrLogGap if the log that the backup needs is
// missing.
func LogOf(ctx context.Context, s archive.Storage, m archive.Summary, name string) (Log, error) {
	from := ManifestPosition(m.Position)
	if from.IsZero() {
		return Log{}, fmt.Errorf("backup %s has no position in a binary log: its server keeps none, or did not say", m.ID)
	}
	all, err := Logs(ctx, s)
	if err != nil {
		return Log{}, err
	}
	var fit []Log
	var seen []string
	for _, l := range all {
		if !l.mayBe(m.Server.SystemID) || name != "" && l.Name != name {
			continue
		}
		seen = append(seen, l.String())
		if l.holds(from) {
			fit = append(fit, l)
		}
	}
	switch {
	case len(fit) == 1:
		return fit[0], nil
	case len(fit) > 1:
		return Log{}, fmt.Errorf("%d archived logs hold %s, where backup %s was taken: name one (%s)", len(fit), from, m.ID, strings.Join(seen, "; "))
	case len(seen) == 0:
		return Log{}, fmt.Errorf("%s holds no binary log of the server of backup %s", s, m.ID)
	}
	return Log{}, fmt.Errorf("%w: backup %s is at %s, and there is %s", my.ErrLogGap, m.ID, from, strings.Join(seen, "; "))
}

// PruneLogs removes the segments that none of the remaining backups needs, and returns their
// number; dry only counts them. It removes nothing of a log whose server has no backup, and
// never the newest segment, after which the log continues. A backup whose position is hidden
// may need any segment.
func PruneLogs(ctx context.Context, s archive.Storage, stay []archive.Summary, dry bool) (int, error) {
	all, err := Logs(ctx, s)
	if err != nil {
		return 0, err
	}
	count := 0
	for _, l := range all {
		oldest, ok := l.oldest(stay)
		if !ok {
			continue
		}
		segments, err := my.ListLogs(ctx, s, l.Dir())
		if err != nil {
			return count, err
		}
		var gone []string
		for i := range len(segments) - 1 {
			// A segment ends where the next one begins, or where its file ends.
			next := segments[i+1]
			if compare(binlog.Position{File: next.File, Pos: next.Start}, oldest) <= 0 {
				gone = append(gone, l.Dir()+segments[i].Name)
			}
		}
		if !dry && len(gone) > 0 {
			if err := s.Delete(ctx, gone...); err != nil {
				return count, fmt.Errorf("prune binary log: %w", err)
			}
		}
		count += len(gone)
	}
	return count, nil
}

// oldest returns the first position that one of the backups needs; ok is false if that is not
// known.
func (l Log) oldest(stay []archive.Summary) (_ binlog.Position, ok bool) {
	var oldest binlog.Position
	for _, m := range stay {
		if m.Engine == archive.PostgreSQL || !l.mayBe(m.Server.SystemID) {
			continue
		}
		at := ManifestPosition(m.Position)
		switch {
		case at.IsZero() && m.Sealed != "":
			return oldest, false
		case at.IsZero():
			continue // it is not used for a replay
		}
		ok = ok || m.Server.SystemID == l.Server
		if oldest.IsZero() || compare(at, oldest) < 0 {
			oldest = at
		}
	}
	return oldest, ok
}
