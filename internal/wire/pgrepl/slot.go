package pgrepl

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// ErrVersion says that the server's version does not have a command.
var ErrVersion = errors.New("the server is too old for this")

// SlotKind is the kind of a replication slot.
type SlotKind string

// The kinds of slot, as pg_replication_slots names them.
const (
	LogicalSlot  SlotKind = "logical"
	PhysicalSlot SlotKind = "physical"
)

// SnapshotMode says what happens to the snapshot of a new logical slot: it sees exactly what
// was committed before the slot's first change.
type SnapshotMode string

// The modes of a snapshot.
const (
	// NoSnapshot creates none.
	NoSnapshot SnapshotMode = "nothing"
	// ExportSnapshot exports it to other sessions (SET TRANSACTION SNAPSHOT) until the next
	// command on this connection.
	ExportSnapshot SnapshotMode = "export"
	// UseSnapshot uses it for the current transaction of this connection, which must be
	// REPEATABLE READ and READ ONLY, and just begun.
	UseSnapshot SnapshotMode = "use"
)

// SlotConfig describes a slot to create.
type SlotConfig struct {
	Name string // lower-case letters, digits and underscores
	Kind SlotKind
	// Plugin is the output plugin of a logical slot. Default: pgoutput.
	Plugin string
	// Temporary makes the server drop the slot at the end of the connection.
	Temporary bool
	// Snapshot is for a logical slot. Default: NoSnapshot.
	Snapshot SnapshotMode
	// Reserve makes a physical slot keep the log from now on, instead of from the first
	// connection that uses it.
	Reserve bool
	// Failover synchronizes a logical slot to standbys. It needs PostgreSQL 17.
	Failover bool
}

// Slot is a new slot.
type Slot struct {
	Name string
	// Start is where a logical slot begins to decode: it sees transactions that commit after
	// this position. 0 for a physical slot.
	Start LSN
	// Snapshot is the name of an exported snapshot, or "".
	Snapshot string
}

// CreateSlot creates a replication slot. A logical slot waits for running transactions to end.
// The slot keeps the log, and fills the disk if it is neither read nor dropped.
func (c *Conn) CreateSlot(ctx context.Context, cfg SlotConfig) (Slot, error) {
	command, err := createSlot(cfg, c.version)
	if err != nil {
		return Slot{}, fmt.Errorf("create replication slot: %w", err)
	}
	row, err := c.queryOne(ctx, command, 4)
	if err != nil {
		return Slot{}, fmt.Errorf("create replication slot %s: %w", cfg.Name, err)
	}
	slot := Slot{Name: string(row[0]), Snapshot: string(row[2])}
	if cfg.Kind == LogicalSlot {
		if slot.Start, err = ParseLSN(string(row[1])); err != nil {
			return Slot{}, fmt.Errorf("create replication slot %s: %w", cfg.Name, err)
		}
	}
	return slot, nil
}

// createSlot returns the command, in the syntax of the server's version.
func createSlot(cfg SlotConfig, version int) (string, error) {
	if err := checkSlotName(cfg.Name); err != nil {
		return "", err
	}
	b := "CREATE_REPLICATION_SLOT " + ident(cfg.Name)
	if cfg.Temporary {
		b += " TEMPORARY"
	}
	switch cfg.Kind {
	case PhysicalSlot:
		if cfg.Plugin != "" || cfg.Snapshot != "" || cfg.Failover {
			return "", errors.New("a physical slot has no plugin, no snapshot and no failover")
		}
		b += " PHYSICAL"
		if cfg.Reserve {
			b += " RESERVE_WAL"
		}
		return b, nil
	case LogicalSlot:
	default:
		return "", fmt.Errorf("kind %q: want logical or physical", cfg.Kind)
	}
	plugin := cfg.Plugin
	if plugin == "" {
		plugin = "pgoutput"
	}
	b += " LOGICAL " + ident(plugin)
	snapshot := cfg.Snapshot
	if snapshot == "" {
		snapshot = NoSnapshot
	}
	old, known := map[SnapshotMode]string{
		NoSnapshot: "NOEXPORT_SNAPSHOT", ExportSnapshot: "EXPORT_SNAPSHOT", UseSnapshot: "USE_SNAPSHOT",
	}[snapshot]
	if !known {
		return "", fmt.Errorf("snapshot %q: want nothing, export or use", cfg.Snapshot)
	}
	switch {
	case cfg.Failover && version < 170000:
		return "", fmt.Errorf("slots that fail over need PostgreSQL 17: %w", ErrVersion)
	case version < 150000:
		return b + " " + old, nil
	}
	options := []string{"SNAPSHOT " + literal(string(snapshot))}
	if cfg.Failover {
		options = append(options, "FAILOVER")
	}
	return b + " (" + strings.Join(options, ", ") + ")", nil
}

// checkSlotName applies the server's own rule before a name is used in a command.
func checkSlotName(name string) error {
	odd := func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '_' }
	if len(name) == 0 || len(name) > 63 || strings.ContainsFunc(name, odd) {
		return fmt.Errorf("slot name %q: want 1 to 63 lower-case letters, digits and underscores", name)
	}
	return nil
}

// DropSlot drops a slot. If it is in use, wait makes the server wait instead of returning an
// error.
func (c *Conn) DropSlot(ctx context.Context, name string, wait bool) error {
	if err := checkSlotName(name); err != nil {
		return fmt.Errorf("drop replication slot: %w", err)
	}
	command := "DROP_REPLICATION_SLOT " + ident(name)
	if wait {
		command += " WAIT"
	}
	if _, err := c.Query(ctx, command); err != nil {
		return fmt.Errorf("drop replication slot %s: %w", name, err)
	}
	return nil
}

// SlotPosition is the position of a physical slot.
type SlotPosition struct {
	Restart  LSN    // the oldest position kept; 0 if no log is reserved
	Timeline uint32 // the timeline of Restart; 0 if no log is reserved
}

// ReadSlot returns the position of a physical slot; found is false if the slot does not exist.
// It needs PostgreSQL 15 (ErrVersion).
func (c *Conn) ReadSlot(ctx context.Context, name string) (p SlotPosition, found bool, err error) {
	if p, found, err = c.readSlot(ctx, name); err != nil {
		return SlotPosition{}, false, fmt.Errorf("read replication slot %s: %w", name, err)
	}
	return p, found, nil
}

func (c *Conn) readSlot(ctx context.Context, name string) (p SlotPosition, found bool, err error) {
	if err := checkSlotName(name); err != nil {
		return p, false, err
	}
	if c.version < 150000 {
		return p, false, fmt.Errorf("reading slots needs PostgreSQL 15: %w", ErrVersion)
	}
	row, err := c.queryOne(ctx, "READ_REPLICATION_SLOT "+ident(name), 3)
	if err != nil || row[0] == nil {
		return p, false, err
	}
	if row[1] != nil {
		if p.Restart, err = ParseLSN(string(row[1])); err != nil {
			return p, false, err
		}
	}
	if row[2] != nil {
		if p.Timeline, err = parseTimeline(row[2]); err != nil {
			return p, false, err
		}
	}
	return p, true, nil
}
