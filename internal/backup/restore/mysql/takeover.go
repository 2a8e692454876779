package mysql

import (
	"context"
	"crypto/sha256"
	"fmt"
	"strings"
	"time"

	my "github.com/weirdb/weir/internal/backup/bulk/mysql"
)

// sessionLocks is the number of locks of a database by which sessions of its restore are found.
const sessionLocks = 256

// takeOverPatience is how long the sessions of the restore that is resumed may take to end.
const takeOverPatience = 5 * time.Minute

// sessionLock returns the name of a lock that a session of a restore holds for as long as it
// lives. A server goes on with the statement of a session whose client was killed, and waits for
// hours for the rest of one whose client's machine is gone. A resumed restore finds such sessions
// by these locks, and ends them.
func sessionLock(database string, n int) string {
	sum := sha256.Sum256([]byte(database))
	return my.Literal(fmt.Sprintf("weir_restore.%x.%d", sum[:16], n)) // 64 characters at most
}

// hold takes the first lock of the database that is free. A server without such locks, as some
// clusters are, is used without.
func hold(ctx context.Context, s *my.Session, database string) error {
	for n := range sessionLocks {
		row, err := s.Row(ctx, "SELECT GET_LOCK("+sessionLock(database, n)+", 0)")
		if my.ErrorCode(err) != 0 {
			return nil
		}
		if err != nil || row[0] == "1" {
			return err
		}
	}
	return nil
}

// takeOver ends the sessions of the restore that is resumed, and waits until they are gone: then
// the journal says all that it has done.
func (l loader) takeOver(ctx context.Context) error {
	own, err := l.main.Row(ctx, "SELECT CONNECTION_ID()")
	if err != nil {
		return fmt.Errorf("ask for the session's id: %w", err)
	}
	var locks []string
	for n := range sessionLocks {
		locks = append(locks, "COALESCE(IS_USED_LOCK("+sessionLock(l.fold(l.target), n)+"), '')")
	}
	ids, err := l.main.Row(ctx, "SELECT "+strings.Join(locks, ", "))
	if my.ErrorCode(err) != 0 {
		return nil // the server has no such locks
	}
	if err != nil {
		return fmt.Errorf("look for the sessions of the interrupted restore: %w", err)
	}
	for _, id := range ids {
		if id == "" || id == own[0] {
			continue
		}
		err := l.main.Exec(ctx, "KILL "+id)
		if gone := uint16(1094); err != nil && my.ErrorCode(err) != gone && !notOwner(err) {
			return fmt.Errorf("end the sessions of the interrupted restore: %w", err)
		}
	}
	patience := time.Now().Add(takeOverPatience)
	for n, id := range ids {
		if id == "" || id == own[0] {
			continue
		}
		lock := sessionLock(l.fold(l.target), n)
		left := max(0, int(time.Until(patience).Seconds()))
		row, err := l.main.Row(ctx, fmt.Sprintf("SELECT GET_LOCK(%s, %d)", lock, left))
		if err != nil {
			return fmt.Errorf("wait for the sessions of the interrupted restore: %w", err)
		}
		if row[0] != "1" {
			return fmt.Errorf("the session %s of the interrupted restore goes on after %s: end it, and resume again", id, takeOverPatience)
		}
		if err := l.main.Exec(ctx, "SELECT RELEASE_LOCK("+lock+")"); err != nil {
			return fmt.Errorf("wait for the sessions of the interrupted restore: %w", err)
		}
	}
	return nil
}

// notOwner reports whether an error says that a session is another account's: it ends by itself.
func notOwner(err error) bool { return my.ErrorCode(err) == 1095 || my.Denied(err) }
