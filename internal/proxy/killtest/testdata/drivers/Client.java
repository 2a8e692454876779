import java.io.IOException;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicLong;

/**
 * Writes through weir with Java's drivers until standard input ends.
 *
 * <p>Client ENGINE HOST PORT USER DATABASE FIRST: ids are FIRST and up. Each line of
 * output is a JSON object; see drivers_test.go.
 */
public class Client {
  static boolean postgres;
  static String[] settings;
  static String ask;
  static volatile boolean stop;
  static final AtomicLong ids = new AtomicLong();

  record Driver(String name, String url) {}

  public static void main(String[] args) throws Exception {
    postgres = args[0].equals("postgres");
    String at = args[1] + ":" + args[2] + "/" + args[4];
    ids.set(Long.parseLong(args[5]));
    List<Driver> drivers;
    if (postgres) {
      settings = new String[] {"SET statement_timeout = '54321ms'", "SET TIME ZONE '+03:00'"};
      ask = "SELECT current_setting('statement_timeout') || ' ' || current_setting('TimeZone')";
      drivers = List.of(new Driver("pgjdbc", "jdbc:postgresql://" + at + "?sslmode=disable&user=" + args[3]));
    } else {
      settings = new String[] {"SET SESSION group_concat_max_len = 54321", "SET time_zone = '+03:00'"};
      ask = "SELECT CONCAT(@@group_concat_max_len, ' ', @@time_zone)";
      drivers = List.of(
          new Driver("MariaDB Connector/J", "jdbc:mariadb://" + at + "?user=" + args[3] + "&useServerPrepStmts=true&connectTimeout=600000"),
          new Driver("MySQL Connector/J", "jdbc:mysql://" + at + "?sslMode=DISABLED&user=" + args[3]));
    }
    List<Thread> threads = new ArrayList<>();
    for (Driver driver : drivers) {
      for (String kind : new String[] {"plain", "hinted", "transactions"}) {
        Thread t = new Thread(() -> new Client(driver, kind).work());
        t.start();
        threads.add(t);
      }
    }
    waitForTheEnd();
    stop = true;
    for (Thread t : threads) {
      t.join();
    }
  }

  static void waitForTheEnd() throws IOException {
    while (System.in.read() >= 0) {}
  }

  final Driver driver;
  final String kind;
  Connection conn;

  Client(Driver driver, String kind) {
    this.driver = driver;
    this.kind = kind;
  }

  void work() {
    String want = null;
    while (!stop) {
      pause(5);
      if (conn == null) {
        try {
          conn = DriverManager.getConnection(driver.url);
          for (String text : settings) {
            run(text);
          }
          want = one(ask);
        } catch (SQLException e) {
          say("connect", 0, e);
          hangUp();
          pause(50);
          continue;
        }
      }
      long n = ids.getAndIncrement();
      boolean committing = !kind.equals("transactions");
      try {
        if (kind.equals("transactions")) {
          conn.setAutoCommit(false);
          insert("", n, 1);
          insert("", n, 2);
          committing = true;
          conn.commit();
        } else {
          insert(kind.equals("hinted") ? "/* batch */ " : "", n, 1);
        }
        say("ok", n, null);
        try {
          if (kind.equals("transactions")) {
            conn.setAutoCommit(true);
          }
          String found = one("SELECT COUNT(*) FROM written WHERE id = " + n);
          String now = one(ask);
          if (!found.equals(kind.equals("transactions") ? "2" : "1")) {
            complain("write " + n + " is there " + found + " times");
          }
          if (!now.equals(want)) {
            complain("settings " + now + ", not " + want);
          }
          continue;
        } catch (SQLException e) {
          say("read", 0, e);
        }
      } catch (SQLException e) {
        say(committing ? "write" : "not committed", n, e);
      }
      try {
        if (!conn.isClosed() && !conn.getAutoCommit()) {
          conn.rollback();
          conn.setAutoCommit(true);
        }
        if (conn.isClosed() || !conn.isValid(60)) {
          hangUp();
        }
      } catch (SQLException e) {
        hangUp(); // what failed was told
      }
    }
    hangUp();
  }

  static void pause(int milliseconds) {
    try {
      Thread.sleep(milliseconds);
    } catch (InterruptedException e) {
      throw new IllegalStateException(e);
    }
  }

  void hangUp() {
    try {
      if (conn != null) {
        conn.close();
      }
    } catch (SQLException e) {
      // it may be lost
    }
    conn = null;
  }

  void insert(String hint, long id, int part) throws SQLException {
    try (PreparedStatement s = conn.prepareStatement(hint + "INSERT INTO written (id, part) VALUES (?, ?)")) {
      s.setLong(1, id);
      s.setInt(2, part);
      s.executeUpdate();
    }
  }

  void run(String text) throws SQLException {
    try (Statement s = conn.createStatement()) {
      s.execute(text);
    }
  }

  String one(String text) throws SQLException {
    try (PreparedStatement s = conn.prepareStatement(text); ResultSet r = s.executeQuery()) {
      r.next();
      return r.getString(1);
    }
  }

  /** The server's code, "lost" where the driver has none. */
  static String code(SQLException e) {
    for (Throwable t = e; t != null; t = t.getCause()) {
      if (t instanceof IOException) {
        return "lost";
      }
    }
    if (postgres) {
      return e.getSQLState() == null ? "lost" : e.getSQLState();
    }
    return e.getErrorCode() == 0 ? "lost" : Integer.toString(e.getErrorCode());
  }

  void say(String did, long id, SQLException e) {
    print(did, id, e == null ? "" : code(e), e == null ? "" : e.toString());
  }

  void complain(String text) {
    print("complaint", 0, "", text);
  }

  void print(String did, long id, String code, String text) {
    String line = "{\"driver\": " + quote(driver.name) + ", \"kind\": " + quote(kind) + ", \"did\": " + quote(did)
        + ", \"id\": " + id + ", \"code\": " + quote(code) + ", \"text\": " + quote(text) + "}";
    synchronized (Client.class) {
      System.out.println(line);
      System.out.flush();
    }
  }

  static String quote(String text) {
    StringBuilder b = new StringBuilder("\"");
    for (char c : text.toCharArray()) {
      if (c == '"' || c == '\\') {
        b.append('\\').append(c);
      } else if (c < ' ') {
        b.append(String.format("\\u%04x", (int) c));
      } else {
        b.append(c);
      }
    }
    return b.append('"').toString();
  }
}
