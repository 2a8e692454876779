// Package rowtext reads the rows of INSERTs that consist of constants. It finds them in texts
// (Cut), so that texts which differ in their constants alone are known again, and makes the
// constants the values of a Bind message (AppendValues).
//
// A group of INSERTs with literals runs as a prepared statement whose parameters are the
// constants of their rows: the server parses and plans a text with literals each time, which is
// more than half of the cost of such a group.
//
// A parameter stores what the constant would, or fails, and then the members run again as
// text. If a constant has another type than its column, such as a number for a text column,
// that would not be true; then the group is sent as text:
//
//   - A quoted literal has no type of its own. The server passes it to the input
//     function of the column's type, as it does with a parameter, and applies the column's
//     length to the result of either. Only the input function of interval also gets the
//     column's fields.
//   - An integer for a column of integers or numeric, a number with a point for numeric,
//     and TRUE and FALSE for boolean, give the same result by the input function as by the parser.
//
// Only types in plainTypes are supported: no domains, enums, or other user-defined types.
//
// All this needs the types that the columns have when the INSERT runs. weir learned them
// some time before, and nothing in the server keeps them: columns may be dropped, renamed
// and given another type while pg_class is unchanged. So a guard compares all columns
// (ColumnsSQL) with what was learned, after the INSERT and in its transaction.
package rowtext
