package binlog

import "fmt"

// EventType is the type of an event.
type EventType byte

// Event types of MySQL; from 160 on, those of MariaDB.
const (
	UnknownEvent            EventType = 0
	StartV3Event            EventType = 1
	QueryEvent              EventType = 2
	StopEvent               EventType = 3
	RotateEvent             EventType = 4
	IntVarEvent             EventType = 5
	RandEvent               EventType = 13
	UserVarEvent            EventType = 14
	FormatDescriptionEvent  EventType = 15
	XIDEvent                EventType = 16
	BeginLoadQueryEvent     EventType = 17
	ExecuteLoadQueryEvent   EventType = 18
	TableMapEvent           EventType = 19
	WriteRowsV1Event        EventType = 23
	UpdateRowsV1Event       EventType = 24
	DeleteRowsV1Event       EventType = 25
	IncidentEvent           EventType = 26
	HeartbeatEvent          EventType = 27
	IgnorableEvent          EventType = 28
	RowsQueryEvent          EventType = 29
	WriteRowsEvent          EventType = 30
	UpdateRowsEvent         EventType = 31
	DeleteRowsEvent         EventType = 32
	GTIDEvent               EventType = 33
	AnonymousGTIDEvent      EventType = 34
	PreviousGTIDsEvent      EventType = 35
	TransactionContextEvent EventType = 36
	ViewChangeEvent         EventType = 37
	XAPrepareEvent          EventType = 38
	PartialUpdateRowsEvent  EventType = 39
	TransactionPayloadEvent EventType = 40
	HeartbeatV2Event        EventType = 41
	TaggedGTIDEvent         EventType = 42

	AnnotateRowsEvent           EventType = 160
	BinlogCheckpointEvent       EventType = 161
	MariaGTIDEvent              EventType = 162
	MariaGTIDListEvent          EventType = 163
	StartEncryptionEvent        EventType = 164
	QueryCompressedEvent        EventType = 165
	WriteRowsCompressedV1Event  EventType = 166
	UpdateRowsCompressedV1Event EventType = 167
	DeleteRowsCompressedV1Event EventType = 168
	WriteRowsCompressedEvent    EventType = 169
	UpdateRowsCompressedEvent   EventType = 170
	DeleteRowsCompressedEvent   EventType = 171
)

var eventNames = map[EventType]string{
	UnknownEvent: "UNKNOWN", StartV3Event: "START_V3", QueryEvent: "QUERY", StopEvent: "STOP", RotateEvent: "ROTATE",
	IntVarEvent: "INTVAR", RandEvent: "RAND", UserVarEvent: "USER_VAR", FormatDescriptionEvent: "FORMAT_DESCRIPTION",
	XIDEvent: "XID", BeginLoadQueryEvent: "BEGIN_LOAD_QUERY", ExecuteLoadQueryEvent: "EXECUTE_LOAD_QUERY",
	TableMapEvent: "TABLE_MAP", WriteRowsV1Event: "WRITE_ROWS_V1", UpdateRowsV1Event: "UPDATE_ROWS_V1",
	DeleteRowsV1Event: "DELETE_ROWS_V1", IncidentEvent: "INCIDENT", HeartbeatEvent: "HEARTBEAT",
	IgnorableEvent: "IGNORABLE", RowsQueryEvent: "ROWS_QUERY", WriteRowsEvent: "WRITE_ROWS",
	UpdateRowsEvent: "UPDATE_ROWS", DeleteRowsEvent: "DELETE_ROWS", GTIDEvent: "GTID", AnonymousGTIDEvent: "ANONYMOUS_GTID",
	PreviousGTIDsEvent: "PREVIOUS_GTIDS", TransactionContextEvent: "TRANSACTION_CONTEXT", ViewChangeEvent: "VIEW_CHANGE",
	XAPrepareEvent: "XA_PREPARE", PartialUpdateRowsEvent: "PARTIAL_UPDATE_ROWS",
	TransactionPayloadEvent: "TRANSACTION_PAYLOAD", HeartbeatV2Event: "HEARTBEAT_V2", TaggedGTIDEvent: "GTID_TAGGED",
	AnnotateRowsEvent: "ANNOTATE_ROWS", BinlogCheckpointEvent: "BINLOG_CHECKPOINT", MariaGTIDEvent: "MARIADB_GTID",
	MariaGTIDListEvent: "GTID_LIST", StartEncryptionEvent: "START_ENCRYPTION", QueryCompressedEvent: "QUERY_COMPRESSED",
	WriteRowsCompressedV1Event: "WRITE_ROWS_COMPRESSED_V1", UpdateRowsCompressedV1Event: "UPDATE_ROWS_COMPRESSED_V1",
	DeleteRowsCompressedV1Event: "DELETE_ROWS_COMPRESSED_V1", WriteRowsCompressedEvent: "WRITE_ROWS_COMPRESSED",
	UpdateRowsCompressedEvent: "UPDATE_ROWS_COMPRESSED", DeleteRowsCompressedEvent: "DELETE_ROWS_COMPRESSED",
}

// String returns the name of the type as the servers write it.
func (t EventType) String() string {
	if s, ok := eventNames[t]; ok {
		return s
	}
	return fmt.Sprintf("type %d", byte(t))
}

// rowsShape is the layout of a type of row event.
type rowsShape struct {
	action     Action
	v2         bool // extra data follows the flags
	compressed bool // MariaDB: the rows are compressed
	partial    bool // JSON columns may hold differences
}

// rowsShapeOf returns the layout of a row event; ok is false for other events.
func rowsShapeOf(t EventType) (shape rowsShape, ok bool) {
	switch t {
	case WriteRowsV1Event:
		return rowsShape{action: Insert}, true
	case UpdateRowsV1Event:
		return rowsShape{action: Update}, true
	case DeleteRowsV1Event:
		return rowsShape{action: Delete}, true
	case WriteRowsEvent:
		return rowsShape{action: Insert, v2: true}, true
	case UpdateRowsEvent:
		return rowsShape{action: Update, v2: true}, true
	case PartialUpdateRowsEvent:
		return rowsShape{action: Update, v2: true, partial: true}, true
	case DeleteRowsEvent:
		return rowsShape{action: Delete, v2: true}, true
	case WriteRowsCompressedV1Event:
		return rowsShape{action: Insert, compressed: true}, true
	case UpdateRowsCompressedV1Event:
		return rowsShape{action: Update, compressed: true}, true
	case DeleteRowsCompressedV1Event:
		return rowsShape{action: Delete, compressed: true}, true
	case WriteRowsCompressedEvent:
		return rowsShape{action: Insert, v2: true, compressed: true}, true
	case UpdateRowsCompressedEvent:
		return rowsShape{action: Update, v2: true, compressed: true}, true
	case DeleteRowsCompressedEvent:
		return rowsShape{action: Delete, v2: true, compressed: true}, true
	}
	return rowsShape{}, false
}

// Action is the kind of change to rows.
type Action byte

// The actions.
const (
	Insert Action = iota + 1
	Update
	Delete
)

// String returns the SQL verb.
func (a Action) String() string {
	switch a {
	case Insert:
		return "INSERT"
	case Update:
		return "UPDATE"
	case Delete:
		return "DELETE"
	}
	return fmt.Sprintf("action %d", byte(a))
}
