package wal

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"sync"
)

const (
	peersName = "peers"
	maxPeers  = 1 << 20 // bytes of the file
)

// peers stores, in a file beside the log, which log each other replica has. A replica that
// comes with another log has lost its directory, and with it what it acknowledged and whom it
// voted for. Safe for concurrent use.
type peers struct {
	disk Disk

	writing sync.Mutex // locked while the file is written; before mu

	mu   sync.Mutex
	logs map[uint64]LogTag
}

// LogTag is the first part of a LogID, which replicas send each other.
type LogTag [8]byte

// Tag returns the first part of the id.
func (id LogID) Tag() (t LogTag) {
	copy(t[:], id[:])
	return t
}

// MarshalText implements encoding.TextMarshaler.
func (t LogTag) MarshalText() ([]byte, error) { return fmt.Appendf(nil, "%x", t[:]), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (t *LogTag) UnmarshalText(b []byte) error {
	var v []byte
	if _, err := fmt.Sscanf(string(b), "%x", &v); err != nil || len(v) != len(t) {
		return errors.New("the tag of a log has 16 hexadecimal digits")
	}
	copy(t[:], v)
	return nil
}

// peersFile is the format of peers on disk.
type peersFile struct {
	Format   uint32            `json:"format"`
	Logs     map[uint64]LogTag `json:"logs"`
	Checksum uint32            `json:"checksum"`
}

func (f *peersFile) seal() (format, checksum *uint32) { return &f.Format, &f.Checksum }

func readPeers(disk Disk) (*peers, error) {
	p := &peers{disk: disk, logs: map[uint64]LogTag{}}
	var f peersFile
	err := readSmall(disk, peersName, maxPeers, &f)
	if errors.Is(err, fs.ErrNotExist) {
		return p, nil
	}
	if err != nil {
		return nil, err
	}
	if f.Logs != nil {
		p.logs = f.Logs
	}
	return p, nil
}

// Met returns the log with which a replica was first met, see [Log.Meet]. It is safe for
// concurrent use.
func (l *Log) Met(replica uint64) (LogTag, bool) {
	l.peers.mu.Lock()
	defer l.peers.mu.Unlock()
	tag, met := l.peers.logs[replica]
	return tag, met
}

// Meet stores durably the log with which a replica was met, unless one is stored already, and
// forgets replicas that are not in keep. It is safe for concurrent use, except with Close.
func (l *Log) Meet(replica uint64, tag LogTag, keep []uint64) error {
	p := l.peers
	p.writing.Lock()
	defer p.writing.Unlock()
	if _, met := l.Met(replica); met {
		return nil
	}
	logs := maps.Clone(p.logs) // only Meet replaces them
	maps.DeleteFunc(logs, func(id uint64, _ LogTag) bool { return !slices.Contains(keep, id) })
	logs[replica] = tag
	if err := writeSmall(p.disk, peersName, &peersFile{Logs: logs}); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.logs = logs
	return nil
}
