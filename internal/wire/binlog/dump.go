package binlog

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/weirdb/weir/internal/wire/mywire"
)

// mariaCapability says that this replica supports MariaDB's GTID events, and all that came
// before them.
const mariaCapability = 4

// prepare tells the server the replica's capabilities, and finds out where to begin.
func (s *Stream) prepare(ctx context.Context) error {
	vars, err := variables(ctx, s.server, "log_bin", "binlog_checksum", "gtid_mode")
	if err != nil {
		return err
	}
	if !isOn(vars["log_bin"]) {
		return &UnavailableError{ErrLogOff, "log_bin is " + vars["log_bin"], hintLogOff}
	}
	if strings.EqualFold(vars["binlog_checksum"], "CRC32") {
		s.framer.checksum = checksumCRC32 // of events before the first format description
	}
	// Both names: MySQL accepts "source" since 8.0.26, MariaDB does not.
	period := strconv.FormatInt(s.cfg.Heartbeat.Nanoseconds(), 10)
	set := "SET @master_binlog_checksum = @@global.binlog_checksum, @source_binlog_checksum = @@global.binlog_checksum" +
		", @master_heartbeat_period = " + period + ", @source_heartbeat_period = " + period
	if s.IsMariaDB() {
		set += fmt.Sprintf(", @mariadb_slave_capability = %d", mariaCapability)
	}
	if s.IsMariaDB() && s.cfg.Start.GTIDs != nil {
		set += ", @slave_connect_state = '" + s.cfg.Start.GTIDs.String() + "', @slave_gtid_strict_mode = 0, @slave_gtid_ignore_duplicates = 0"
	}
	if _, err := s.server.Exec(ctx, set); err != nil {
		return fmt.Errorf("introduce the replica: %w", err)
	}
	return s.locate(ctx, isOn(vars["gtid_mode"]))
}

// isOn parses the value of a boolean variable.
func isOn(value string) bool { return strings.EqualFold(value, "ON") || value == "1" }

// variables returns global variables of the server, without those that it does not have.
func variables(ctx context.Context, server *mywire.Server, names ...string) (map[string]string, error) {
	rows, err := server.Query(ctx, "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('"+strings.Join(names, "','")+"')")
	if err != nil {
		return nil, fmt.Errorf("read variables: %w", err)
	}
	vars := map[string]string{}
	for _, row := range rows {
		if len(row) == 2 {
			vars[strings.ToLower(row[0].String)] = row[1].String
		}
	}
	return vars, nil
}

// locate finds out where the log is to begin, and which GTIDs precede that.
func (s *Stream) locate(ctx context.Context, gtidMode bool) error {
	s.start = s.cfg.Start.Position
	switch {
	case s.cfg.Start.GTIDs != nil:
		return s.locateGTIDs(gtidMode)
	case s.cfg.Start.Oldest:
		if err := s.oldest(ctx); err != nil {
			return err
		}
	case s.start.IsZero():
		end, err := currentEnd(ctx, s.server)
		if err != nil {
			return err
		}
		if s.start = end.pos; gtidMode {
			s.executed = end.executed
		}
	}
	if s.IsMariaDB() {
		return s.gtidsBefore(ctx)
	}
	return nil
}

func (s *Stream) locateGTIDs(gtidMode bool) error {
	set := s.cfg.Start.GTIDs
	if foreign := len(set.origins) > 0; s.IsMariaDB() == foreign && !set.IsEmpty() {
		return &UnavailableError{ErrPosition, "the GTIDs " + set.String() + " are of the other family of servers", ""}
	}
	if !s.IsMariaDB() && !gtidMode {
		return &UnavailableError{ErrNoGTIDs, "gtid_mode is not ON", "start at a position instead"}
	}
	s.executed = set.Clone()
	return nil
}

func (s *Stream) oldest(ctx context.Context) error {
	rows, err := s.server.Query(ctx, "SHOW BINARY LOGS")
	if err != nil {
		return fmt.Errorf("list binary logs: %w", err)
	}
	if len(rows) == 0 || len(rows[0]) == 0 {
		return errors.New("list binary logs: the server names none")
	}
	s.start = Position{rows[0][0].String, uint64(len(Magic))}
	return nil
}

// gtidsBefore asks a MariaDB server for the GTIDs before the start position.
func (s *Stream) gtidsBefore(ctx context.Context) error {
	rows, err := s.server.Query(ctx, fmt.Sprintf("SELECT BINLOG_GTID_POS(%s, %d)", quote(s.start.File), s.start.Pos))
	if err != nil {
		return fmt.Errorf("find GTIDs of the position: %w", err)
	}
	if len(rows) != 1 || len(rows[0]) != 1 || !rows[0][0].Valid {
		return nil // no such position: the server will report that
	}
	s.executed, err = ParseGTIDSet(rows[0][0].String)
	return err
}

// quote returns a string literal that is independent of sql_mode.
func quote(s string) string { return fmt.Sprintf("x'%x'", s) }

// logEnd is a server's description of the end of its log.
type logEnd struct {
	pos          Position
	only, except string   // comma-separated: the only databases that are logged, and those that are not
	executed     *GTIDSet // of MySQL
}

// currentEnd asks a server for the end of its log.
func currentEnd(ctx context.Context, server *mywire.Server) (logEnd, error) {
	statement := "SHOW MASTER STATUS"
	if !server.IsMariaDB() {
		statement = "SHOW BINARY LOG STATUS"
	}
	rows, err := server.Query(ctx, statement)
	if mywire.CodeOf(err) == mywire.ErrSyntax { // MySQL before 8.2
		rows, err = server.Query(ctx, "SHOW MASTER STATUS")
	}
	if err != nil {
		return logEnd{}, fmt.Errorf("find the end of the log: %w", err)
	}
	if len(rows) == 0 || len(rows[0]) < 4 {
		return logEnd{}, &UnavailableError{ErrLogOff, "the server names no current log", hintLogOff}
	}
	row := rows[0]
	pos, err := strconv.ParseUint(row[1].String, 10, 64)
	if err != nil {
		return logEnd{}, fmt.Errorf("find the end of the log: %w", err)
	}
	end := logEnd{pos: Position{row[0].String, pos}, only: row[2].String, except: row[3].String}
	if len(row) > 4 {
		end.executed, err = ParseGTIDSet(row[4].String)
	}
	return end, err
}

// register returns a COM_REGISTER_SLAVE, which makes SHOW REPLICAS list this replica.
func (s *Stream) register() []byte {
	arg := binary.LittleEndian.AppendUint32(nil, s.cfg.ServerID)
	arg = append(arg, "\x04weir\x00\x00"...)        // host, no user, no password
	arg = append(arg, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0) // port, rank, id of the master
	return mywire.AppendCommand(nil, mywire.ComRegisterSlave, arg)
}

// Flags of COM_BINLOG_DUMP and COM_BINLOG_DUMP_GTID.
const (
	dumpNonBlocking = 1 << 0
	dumpAnnotations = 1 << 1 // MariaDB
	dumpThroughGTID = 1 << 2 // MySQL
)

// dump returns the command that requests the log.
func (s *Stream) dump() ([]byte, error) {
	var flags uint16
	if s.cfg.NonBlocking {
		flags |= dumpNonBlocking
	}
	if s.IsMariaDB() && s.cfg.Exact {
		flags |= dumpAnnotations
	}
	if s.cfg.Start.GTIDs != nil && !s.IsMariaDB() {
		return s.dumpGTIDs(flags | dumpThroughGTID), nil
	}
	at := s.start
	if s.cfg.Start.GTIDs != nil {
		at = Position{Pos: uint64(len(Magic))} // @slave_connect_state says where
	}
	if at.Pos >= 1<<32 {
		return nil, &UnavailableError{ErrPosition, "the protocol has no offsets of 4 GiB and more", "begin with GTIDs"}
	}
	arg := binary.LittleEndian.AppendUint32(nil, uint32(at.Pos))
	arg = binary.LittleEndian.AppendUint16(arg, flags)
	arg = binary.LittleEndian.AppendUint32(arg, s.cfg.ServerID)
	return mywire.AppendCommand(nil, mywire.ComBinlogDump, append(arg, at.File...)), nil
}

func (s *Stream) dumpGTIDs(flags uint16) []byte {
	set := s.cfg.Start.GTIDs.appendMySQL(nil)
	arg := binary.LittleEndian.AppendUint16(nil, flags)
	arg = binary.LittleEndian.AppendUint32(arg, s.cfg.ServerID)
	arg = binary.LittleEndian.AppendUint32(arg, 0) // length of the file's name
	arg = binary.LittleEndian.AppendUint64(arg, uint64(len(Magic)))
	arg = binary.LittleEndian.AppendUint32(arg, uint32(len(set)))
	return mywire.AppendCommand(nil, mywire.ComBinlogDumpGTID, append(arg, set...))
}
