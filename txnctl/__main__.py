from txnctl.main import main

main()
