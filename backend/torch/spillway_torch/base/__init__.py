"""The ground floor: errors, devices, the ledger of storages, the tables of operators, and the writer of files."""
