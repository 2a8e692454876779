package binlog

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirdb/weir/internal/backup/archive"
	dumpmy "github.com/weirdb/weir/internal/backup/mysql"
	"github.com/weirdb/weir/internal/wire/binlog"
)

// ParsePosition parses FILE:POS.
func ParsePosition(text string) (binlog.Position, error) {
	i := strings.LastIndexByte(text, ':')
	if i > 0 {
		pos, err := strconv.ParseUint(text[i+1:], 10, 63)
		if err == nil && pos >= uint64(len(binlog.Magic)) {
			return binlog.Position{File: text[:i], Pos: pos}, nil
		}
	}
	return binlog.Position{}, fmt.Errorf("%q: want FILE:POS, such as binlog.000042:4", text)
}

// ParseGTID parses one GTID as its server writes it: 0-1-42, or UUID:42 or UUID:TAG:42.
func ParseGTID(text string) (binlog.GTID, error) {
	wrong := fmt.Errorf("%q: want one transaction, such as 0-1-42 (MariaDB) or 3e11fa47-71ca-11e1-9e33-c80aa9429562:42 (MySQL)", text)
	var g binlog.GTID
	if parts := strings.Split(text, ":"); len(parts) > 1 {
		id, err := hex.DecodeString(strings.ReplaceAll(parts[0], "-", ""))
		if err != nil || len(id) != len(g.UUID) || len(parts) > 3 {
			return g, wrong
		}
		g.UUID = [16]byte(id)
		if len(parts) == 3 {
			g.Tag = strings.ToLower(parts[1])
		}
		if g.Seq, err = strconv.ParseUint(parts[len(parts)-1], 10, 63); err != nil || g.Seq == 0 {
			return binlog.GTID{}, wrong
		}
		return g, nil
	}
	parts := strings.Split(text, "-")
	if len(parts) != 3 {
		return g, wrong
	}
	domain, err1 := strconv.ParseUint(parts[0], 10, 32)
	server, err2 := strconv.ParseUint(parts[1], 10, 32)
	seq, err3 := strconv.ParseUint(parts[2], 10, 64)
	if errors.Join(err1, err2, err3) != nil || seq == 0 {
		return g, wrong
	}
	return binlog.GTID{Domain: uint32(domain), Server: uint32(server), Seq: seq}, nil
}

// past returns why a target cannot be reached because it is before the backup, or "".
func past(t dumpmy.LogTarget, m archive.Summary) (string, error) {
	switch at := m.Position; {
	case !t.Time.IsZero() && t.Time.Before(at.Time):
		return fmt.Sprintf("backup %s shows %s, which is later", m.ID, at.Time.UTC().Format(time.RFC3339Nano)), nil
	case !t.GTID.IsZero() && at.GTID != "":
		set, err := binlog.ParseGTIDSet(at.GTID)
		if err != nil {
			return "", fmt.Errorf("backup %s: %w", m.ID, err)
		}
		if set.Contains(t.GTID) {
			return fmt.Sprintf("backup %s shows more than %s: it is at %s", m.ID, t.GTID, at.GTID), nil
		}
	case !t.Position.IsZero() && dumpmy.Before(t.Position, dumpmy.ManifestPosition(at)):
		return fmt.Sprintf("backup %s is at %s, which is after it", m.ID, dumpmy.ManifestPosition(at)), nil
	}
	return "", nil
}

// ChooseBackup returns the ID of the newest backup from which the target can be reached, among
// those with the given label, or all if it is "".
func ChooseBackup(ctx context.Context, repo *archive.Repository, label string, t dumpmy.LogTarget) (string, error) {
	entries, err := archive.List(ctx, repo, time.Now())
	if err != nil {
		return "", err
	}
	var fit []archive.Entry
	labels, servers := map[string]bool{}, map[string]bool{}
	reason := ""
	for _, e := range entries {
		m := e.Summary
		if e.State != archive.Complete || m.Engine == archive.PostgreSQL || m.Position.Binlog == "" || label != "" && m.Label != label {
			continue
		}
		labels[m.Label], servers[m.Server.SystemID] = true, true
		why, err := past(t, m)
		if err != nil {
			return "", err
		}
		if why != "" {
			reason = "; " + why
			continue
		}
		fit = append(fit, e)
	}
	switch {
	case len(servers) > 1:
		// Positions and GTIDs of one server mean nothing on another.
		return "", fmt.Errorf("%s holds backups of %d servers: name a backup by its ID", repo, len(servers))
	case len(labels) > 1:
		return "", fmt.Errorf("%s holds backups of %d labels: name one by --label, or a backup by its ID", repo, len(labels))
	case len(fit) == 0:
		return "", fmt.Errorf("%s holds no complete backup from which the target can be reached%s; weir backup list shows all backups", repo, reason)
	}
	// A partial backup cannot be used, and is rejected later with an explanation.
	for _, e := range slices.Backward(fit) {
		if !e.Summary.Partial {
			return e.ID, nil
		}
	}
	return fit[len(fit)-1].ID, nil
}
