package wal

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"sync"
)

const (
	peersName = "peers"
	maxPeers  = 1 << 20 // bytes of the file
)

// peers remembers, in a file beside the log, which log other replicas have: a
// replica that comes with another one has lost its directory, and with it what it
// acknowledged and whom it voted for. Safe for concurrent use.
type peers struct {
	disk Disk

	writing sync.Mutex // of the file; taken before mu

	mu   sync.Mutex
	logs map[uint64]LogTag
}

// LogTag is the beginning of a LogID, as replicas tell it each other.
type LogTag [8]byte

// Tag returns the beginning of the id.
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

// peersFile is how peers are kept: a line that a person can read.
type peersFile struct {
	Format   uint32            `json:"format"`
	Logs     map[uint64]LogTag `json:"logs"`
	Checksum uint32            `json:"checksum"` // CRC-32C of the same line with checksum 0
}

func (f peersFile) encode() ([]byte, error) {
	f.Checksum = 0
	b, err := json.Marshal(f)
	if err != nil {
		return nil, err
	}
	f.Checksum = checksum(0, b)
	b, err = json.Marshal(f)
	return append(b, '\n'), err
}

func readPeers(disk Disk) (*peers, error) {
	p := &peers{disk: disk, logs: map[uint64]LogTag{}}
	f, err := disk.Open(peersName, false)
	if errors.Is(err, fs.ErrNotExist) {
		return p, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", peersName, err)
	}
	b, err := io.ReadAll(io.NewSectionReader(f, 0, maxPeers))
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("read %s: %w", peersName, err)
	}
	var file peersFile
	if err := json.Unmarshal(b, &file); err != nil {
		return nil, corrupt(peersName, 0, "it cannot be read: %v", err)
	}
	if file.Format != formatVersion {
		return nil, &VersionError{File: peersName, Version: file.Format}
	}
	if again, err := file.encode(); err != nil || string(again) != string(b) {
		return nil, corrupt(peersName, 0, "its checksum does not match")
	}
	if file.Logs != nil {
		p.logs = file.Logs
	}
	return p, nil
}

// Met returns the log that a replica was met with first, as [Log.Meet] has noted it.
// Any goroutine may call it.
func (l *Log) Met(replica uint64) (LogTag, bool) {
	l.peers.mu.Lock()
	defer l.peers.mu.Unlock()
	tag, met := l.peers.logs[replica]
	return tag, met
}

// Meet notes, durably, with which log a replica was met, unless one is noted
// already, and forgets the replicas that are not in keep any more. Any goroutine may
// call it, but for Close's.
func (l *Log) Meet(replica uint64, tag LogTag, keep []uint64) error {
	p := l.peers
	p.writing.Lock()
	defer p.writing.Unlock()
	if _, met := l.Met(replica); met {
		return nil
	}
	logs := maps.Clone(p.logs) // which only Meet replaces
	maps.DeleteFunc(logs, func(id uint64, _ LogTag) bool { return !slices.Contains(keep, id) })
	logs[replica] = tag
	b, err := peersFile{Format: formatVersion, Logs: logs}.encode()
	if err != nil {
		return fmt.Errorf("encode %s: %w", peersName, err)
	}
	if err := writeFile(p.disk, peersName+tempSuffix, b); err != nil {
		return fmt.Errorf("write %s: %w", peersName, err)
	}
	if err := p.disk.Rename(peersName+tempSuffix, peersName); err != nil {
		return fmt.Errorf("name %s: %w", peersName, err)
	}
	if err := p.disk.SyncDir(); err != nil {
		return fmt.Errorf("flush directory: %w", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.logs = logs
	return nil
}
